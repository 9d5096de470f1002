"""Run a training program under watch: report what its steps, networks, losses and loaders do.

`main` runs the program, `launch` starts that process, `record` keeps the findings, and `events`
names what a listener hears. Each other module holds the listeners of one subject.
"""
