"""Does bfloat16 compute change what a model does past the training length? Differences of paired runs, from their records."""
