"""The composition root: the one place where the parts of a process are put together.

A command imports the module that builds what it needs, when it needs it; each part is imported
where it is built. So a process loads only what it uses.
"""
