"""Looking at trained models. `subject.load(run)` gives what every function here takes, or its attention weights.

* `weights`: entropy, distance, sinks and divergence of attention weights
* `patterns`, `counting`, `scores`: what heads look at, with baselines and intervals; `source`: brackets and names as truth
* `probes`: positions read from hidden states
* `importance`, `pruning`: which heads matter, and how many can go
* `rotary`, `curves`: frequencies in use, learned biases against distance
* `maps`: figures
"""
