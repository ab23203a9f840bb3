"""Conversion between measurements and tokens.

vocab.py      the 272 ids
rtt.py        the five RTT encodings
statement.py  the fields that a measurement states, and their order
reference.py  encode and decode in plain Python: the specification, with DecodeError
codec.py      the compiled functions from which kernels build contexts
columns.py    compiled encoder for columns
grammar.py    the ids that may come next
show.py       measurements beside their tokens
"""
