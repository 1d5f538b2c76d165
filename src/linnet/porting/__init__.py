"""Programs of other frameworks as Linnet source: a graph of operations, its blocks, its text."""
