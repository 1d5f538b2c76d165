"""The language server: Linnet in an editor."""
