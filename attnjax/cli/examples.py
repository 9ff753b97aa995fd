"""What `--help` says below the options of each command."""

CODES = """
exit status:
  0    all is done (failed runs of a sweep are recorded, listed, and counted in its last line)
  1    the run failed; a sweep: with --strict or --fail-fast if a run failed, else if none succeeded; or records are damaged,
       the end of a run could not be written, or a run has not ended and nobody works on it;
       bench: a suite failed, or with --smoke a peer's numbers differ from ours; parity: numbers differ
  2    a mistake in the command, the config or the folder: said in one line, before anything was trained
  3    other processes still work on runs of this sweep (with --wait: stays until those have ended)
  130  stopped by Ctrl-C after saving (a second Ctrl-C stops at once)
  143  stopped by SIGTERM after saving (a second SIGTERM stops at once)
"""
EXAMPLES = """
examples:
  attnjax list configs
  attnjax show rope_vs_sinusoidal
  attnjax run rope_vs_sinusoidal model.encoding=alibi train.steps=500
  attnjax sweep rope_vs_sinusoidal --workers 2
  attnjax report runs/rope_vs_sinusoidal
"""
OVERRIDES = """
KEY=VALUE changes a field of the config: train.steps=500, model.encoding=alibi, model.encoding.options.theta=500000,
evaluate.lengths=40,80,160, model.kv_heads=none. `attnjax show CONFIG` prints all fields, and in which ones its runs differ.

What the command line sets holds in every run. Where the sweep() of the config sets the same field, or a field inside of it,
the command line wins, and runs that become equal are one run; where the sweep sets a table around the field, the field is
set in each of these tables. So model.encoding=alibi replaces every encoding of a sweep together with its options, and
model.encoding.options.theta=500 sets theta in each of them. Values that a config derives from a field follow that field. A
field that is set twice on the command line is an error; a longer key is set inside of a shorter one.

model.encoding=package.module:Class and task.name=package.module:Class take a class of another project: its module is imported,
which executes its code. A config in Python may name one too; JSON configs and folders of records import nothing.
"""
RUN = """
examples:
  attnjax run unique_copy train.steps=500 seed=3
  attnjax run rope_vs_sinusoidal model.encoding=alibi --out results/alibi

The same command again resumes what was stopped, and does nothing where all is done.
"""
SWEEP = """
examples:
  attnjax sweep rope_vs_sinusoidal --workers 2 --report
  attnjax sweep stdlib_lm --over model.layers=2,4 --over train.learning_rate=1e-3,3e-4 --seeds 3 --workers 2
  attnjax sweep theta --dry-run

Runs are those of the config's sweep() times every --over and --seeds, which replace what the sweep sets of the same fields:
--seeds 10 gives each cell the seeds 0 to 9 whatever seeds the config has. The same command again does what is missing, also
after kill -9. Runs with equal shapes train together as one population.
"""
REPORT = """
examples:
  attnjax report runs/rope_vs_sinusoidal
  attnjax report runs/huang-short --published --out results/huang
"""
LIST = """
examples:
  attnjax list
  attnjax list encodings rope
  attnjax list tasks copy
  attnjax list configs
  attnjax list runs runs/rope_vs_sinusoidal
"""
SHOW = """
examples:
  attnjax show theta
  attnjax show ruoss:short model.encoding=alibi --no-model
"""
BENCH = """
examples:
  attnjax bench
  attnjax bench attention memory --out results/attention
  attnjax bench --smoke
  attnjax bench --torch .venv-torch/bin/python
  attnjax bench --render runs/bench

Writes speed.jsonl, a row as soon as it is measured, then speed.md and, where matplotlib is installed, speed.png and
speed.svg. Let nothing else run meanwhile. What an earlier run left is kept as speed.before.jsonl.
"""
GENERATE = """
examples:
  attnjax generate models/gpt2 "The meaning of life is" --tokens 40
  attnjax generate models/gpt2 "Once upon a time" --temperature 0.8 --top-k 40 --seed 1
  attnjax generate models/gpt2 "464 3616" --ids
  attnjax generate models/llama "Once upon a time" --encoding rope --option theta=500000
  attnjax generate models/gpt2 "Once upon a time" --encoding alibi

FOLDER holds config.json and safetensors files as downloaded, and tokenizer.json, unless prompt and answer are token ids.
With --encoding, weights are kept where they fit; what is random in their place, or has no place, is said.
"""
PARITY = """
examples:
  attnjax parity models/gpt2
  attnjax parity models/gpt2 --tokens 128 --tolerance 1e-4
  attnjax parity models/gpt2 --dtype float64 --tolerance 1e-9

Two random sequences, a quarter of the second is padding; for decoders also in two chunks through caches. A gradient is
compared with its own largest number, or with a thousandth of the largest of all where it is smaller than that. Needs
torch and transformers.
"""
EXPORT = """
examples:
  attnjax export runs/theta --to tensorboard      # then: tensorboard --logdir exported/tensorboard
  attnjax export heads_lm/rope/0 --to wandb       # then, to upload it: wandb sync exported/wandb/*/*.wandb

Config, training log and evaluations of each run, from its records alone: nothing about this machine, and nothing is sent.
The same command again, also while runs go on, replaces the files.
"""
EXPLORE = """
examples:
  attnjax explore
  attnjax explore runs/stdlib_lm/0123456789abcdef
  attnjax explore heads_lm/rope/0 heads_lm/sinusoidal/0 --text "for i in range(10):"
  attnjax explore runs/theta/model.encoding.options.theta=500,seed=1

A run is named by its folder, by the beginning of its hash, or by what it is: encoding and seed, or fields of its config
(encoding, task and state are short for themselves), behind the name of its sweep in ./runs or the folder of one. `attnjax
list runs DIR` shows all of these.

Writes one file that asks the network for nothing. Without runs it is the notebook alone: four words, two heads, and an
encoding. With one run or two it also shows the weights of every head on a few texts, and the loss by position past the
training length. For tasks other than text, --text takes names of tokens with white space between them.
"""
