"""Run a training program under watch and report its steps, networks, losses and loaders.

`main` runs the program, `launch` starts that process, `record` keeps the findings, and `events`
names what a listener hears. Each other module holds the listeners of one subject.
"""
