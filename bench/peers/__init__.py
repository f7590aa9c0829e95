"""Other ways to compute what sopr_fast computes, timed beside it, same parameters and same results."""
