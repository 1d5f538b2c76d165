"""Programs of other frameworks as Linnet source: a graph of typed operations, its blocks, its text."""
