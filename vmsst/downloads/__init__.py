"""Downloads public data: OPUS releases and benchmark evaluation sets.

Files are downloaded over HTTPS. An interrupted download resumes on the next call. Each file is
checked before it is renamed into place.
"""
