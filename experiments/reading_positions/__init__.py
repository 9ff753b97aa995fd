"""What do trained models know of positions: in their hidden states, in the rotations they use, and in their biases?"""
