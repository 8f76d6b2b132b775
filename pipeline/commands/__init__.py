"""The command line: `gigabatch COMMAND --config conf/NAME.yaml key=value ...`. Importing this package loads nothing.

`app.py` lists every command; each group of commands has a file. What a command does lies elsewhere in `pipeline/` and
is imported when the command runs, so that help and mistakes are answered at once.
"""
