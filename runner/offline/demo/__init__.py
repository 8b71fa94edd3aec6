"""A runner that is killed in the middle of its work, and what that costs, for a person who watches.

`sample` is the repository, its tickets and what the scripted model says to them; `stage` is a directory in
which the installed `ticket-runner` works on them; `account` compares what the runner says was paid with what the
API served. `__main__` tells the story. Nothing of the runner is imported: it is used as a person uses it.
"""
