"""Names of the ASCII codes that compiled loops compare with.

Numba treats globals as constants, so the names cost nothing at run time.
"""

TAB, NEWLINE, RETURN, SPACE = b"\t\n\r "
QUOTE, COMMA, MINUS, DOT = b'",-.'
ZERO, NINE, COLON = b"09:"
BRACKET, BACKSLASH, BRACKET_END = b"[\\]"
BRACE, BRACE_END = b"{}"
UPPER_A, UPPER_E, UPPER_F = b"AEF"
LOWER_A, LOWER_E, LOWER_F, LOWER_N, LOWER_T = b"aefnt"
