"""Everything that numba compiles, and the records and constants that it reads."""
