"""The composition root: builds the objects of a process from the settings and the environment.

A command imports the module that builds what it needs, inside the command; each module imports a
class where it builds an object of it. So a process loads only what it uses.
"""
