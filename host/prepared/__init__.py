"""Folders of prepared data: the images of data sets that are larger than memory, and what training needs beside them.

`p4sgd.host.prepared.make` makes them, `p4sgd.host.prepared.folder` opens them for training. README.md of this folder
says how, and what is kept.
"""
