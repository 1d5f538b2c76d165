"""How each method is loaded and run, in the environment of its own that it needs.

A module here has `prepare(job)`, which imports the framework and sets its threads and gives its
version, and `load(job)`, which gives a Runner. Neither imports anything of Linnet but `linnet`
itself where that is the method: a peer's environment has none of it.
"""
