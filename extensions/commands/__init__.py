"""Commands of the program ``voxpipe``: a module each, over public functions.

A module has ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit status. The
first line of its docstring is the help of the command.
"""
