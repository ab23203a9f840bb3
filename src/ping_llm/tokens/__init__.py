"""Measurements ↔ tokens.

vocab.py      the 272 ids
rtt.py        the five RTT encodings
statement.py  what a measurement states, and in which order
reference.py  encode and decode, plain: the specification
codec.py      the compiled blocks that kernels build contexts from
columns.py    encode, compiled, on columns
decoder.py    decode, compiled, into columns
problems.py   DecodeError: what is wrong, and where
grammar.py    which ids may come next
show.py       measurements beside their tokens
"""
