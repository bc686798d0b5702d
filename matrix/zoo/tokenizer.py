"""The zoo's tokenizer: byte-level BPE, one token per digit, trained on gsm-mini's text.

`data/tokenizer.json` is its only source; the models are trained on its ids, so it is never retrained.
"""

BOS_ID, EOS_ID = 0, 1
