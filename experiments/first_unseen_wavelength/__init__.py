"""Does RoPE last as long as the first wavelength that training has not seen, and not as long as its base is large?"""
