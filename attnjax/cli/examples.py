"""The examples and notes that `--help` prints below the options of each command."""

CODES = """
exit status:
  0    everything is done
  1    a run failed, is damaged, or has not ended: other processes still work on it, or its end could not be written
  2    the command, the config or the folder is wrong: one line says what, and nothing was trained
  130  stopped by a signal (Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2) after saving; the same command continues
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
evaluate.lengths=40,80,160, model.kv_heads=none. `attnjax show CONFIG` prints all fields, and those in which its runs differ.

A change on the command line applies to every run:
  - If the sweep() of the config sets the same field, or a part of it, the command line wins, and runs that become equal are
    one run. So model.encoding=alibi replaces every encoding of a sweep together with its options.
  - If the sweep sets a table that contains the field, the field is set in each table. So model.encoding.options.theta=500
    sets theta in every encoding of a sweep.
  - Values that the config derives from the field follow it.
  - To set one field twice is an error. A longer key is applied after a shorter one that contains it.

model.encoding=package.module:Class and task.name=package.module:Class use a class of another project. This imports the module,
and so executes its code. A Python config may name such a class too; JSON configs and folders of records import nothing.
"""
RUN = """
examples:
  attnjax run rope_vs_sinusoidal train.steps=500 seed=3
  attnjax run rope_vs_sinusoidal model.encoding=alibi --out results/alibi
  attnjax run heads_lm --mesh data=8 --coordinator 10.0.0.1:8476 --processes 2 --process-id 0

The same command resumes a run that was stopped, and does nothing if the run is done.

With --coordinator a process on each host, 0 to N-1, trains the same model on the devices of all. Process 0 alone reads and
writes the folder of results, but for checkpoints of runs that others alone have (--mesh population=N); the others end with its
exit status. A signal to any of them stops all after saving, with 130.
"""
SWEEP = """
examples:
  attnjax sweep rope_vs_sinusoidal --workers 2 --report
  attnjax sweep stdlib_lm --over model.layers=2,4 --over train.learning_rate=1e-3,3e-4 --seeds 3 --workers 2
  attnjax sweep theta --executor slurm --workers 8 --cluster partition=gpu --cluster time=04:00:00 --cluster gpus-per-task=1
  attnjax sweep theta --executor ray --workers 8 --cluster address=10.0.0.1:6379 --cluster num_gpus=1
  attnjax sweep theta --log tensorboard           # then: tensorboard --logdir runs/theta/live/tensorboard
  attnjax sweep theta --dry-run

The runs are all combinations of those in the sweep() of the config with the values of every --over and with --seeds, which
replace what the sweep sets for the same fields: --seeds 10 gives each cell the seeds 0 to 9, whatever seeds the config has.
The same command trains what is missing, also after kill -9. Runs that differ only in numbers (seeds, rates, constants of an
encoding) train together in one program, as a population.

A config with tune() lists candidates, such as learning rates. Its sweep is tuned first: every cell is trained with every
candidate in DIR/tuning, on seeds of its own and without test lengths, the best validation score chooses, and the sweep is
trained with what was chosen (DIR/tuning.json). With --no-tune it is trained as written, and its report says so.

--cluster with slurm is an option of sbatch without its dashes, or setup=LINE: a line of the shell before the worker starts.
With ray it is address, num_cpus, num_gpus or a resource of your own, and how much of it each worker takes.
"""
WORK = """
examples:
  attnjax sweep theta --plan --out shared/theta
  attnjax work shared/theta
  attnjax work shared/theta --wait --patience 300

Any number of workers on any number of machines may work on one folder; each run is trained by one of them. A worker that
gets SIGTERM, SIGUSR1 or SIGUSR2 saves at the next step, gives its runs back, and exits with 130. With --wait
it stays until all runs have ended, and takes over those whose worker dies.
"""
REPORT = """
examples:
  attnjax report runs/rope_vs_sinusoidal
  attnjax report runs/huang_short --published --out results/huang
"""
LIST = """
examples:
  attnjax list
  attnjax list encodings rope
  attnjax list tasks copy
  attnjax list suites long
  attnjax list configs
  attnjax list runs runs/rope_vs_sinusoidal
  attnjax list runs runs/rope_vs_sinusoidal --watch 60
"""
SHOW = """
examples:
  attnjax show theta
  attnjax show ruoss:short model.encoding=alibi --no-model
"""
COMPILE = """
examples:
  attnjax compile rope_vs_sinusoidal --topology v5e:2x4 --mesh population=8
  attnjax compile heads_lm --topology h100:8 train.batch=64

Each group of runs that share a program is compiled once. Memory is that of one device: arguments, results that do not take
their place, temporary arrays, code. Collectives are counted for one step of a loop where the compiler does not know how
often it runs. A program for a TPU that does not fit is refused by the compiler; for a GPU its bytes are compared with
those of the device. Nothing runs: this says neither that the numbers are right nor how fast it is. The compilers come
with attnjax[compile].
"""
EVALUATE = """
examples:
  attnjax evaluate models/smollm --suite long --lengths 1k,2k,4k
  attnjax evaluate stdlib_lm/rope/0 --lengths 512,1k,2k --tasks niah_single_1,niah_multikey_2 --perplexity stdlib
  attnjax evaluate models/smollm --lengths 4k --depths 11 --haystack stdlib
  attnjax evaluate models/gpt2 --perplexity book.txt --lengths 512,1k --stride 256
  attnjax evaluate models/pythia-70m --lengths 2k,4k,8k --extend self_extend
  attnjax evaluate models/pythia-70m --lengths 2k,4k,8k --extend rerope+log_n --option window=256
  attnjax evaluate models/pythia-70m --lengths 4k --extend longrope --search notes.txt --perplexity book.txt
  attnjax evaluate runs/recall/0123456789abcdef --lengths 64,128,256

The suite has the six tasks of RULER that need no corpus. Each table cell has two percentages. The first is RULER's
string_match_all of greedily generated answers. The second is the share of samples in which the model finds the right answer
likelier, per byte, than four wrong ones; it also tells small models apart (guessing: 20). The effective length is the largest
length whose mean over tasks is at least 85.6. The words in the prompts are our own, so scores differ from published ones. No
text is ever cut: a task that does not fit a length has no score there, and a note says why.

--perplexity reads a file as a whole; of a folder or stdlib, the test split, which runs on it were not trained on, and at most
16 MiB of that. Windows of a length begin every --stride tokens, and each token of the text but the first is predicted once, in
the first window that has it: given length - stride tokens before it, or more, or all there are. The table has the mean loss in
nats per token, its exp (perplexity), bits per byte, tokens per byte, and how many tokens and bytes were counted: the bytes are
those of the text without the ones of a first token that is not predicted. A token that the tokenizer puts before a text, as
BOS, stands before the first window, or with --bos every before each. LongPPL is that of the first four windows side by side;
the last column says of how many.

--extend puts a method of reading past the trained length in place of RoPE, without training, for the longest of --lengths.
Its sizes are those of its authors, made of the trained length; --option replaces one of them, and --option layers=global
changes layers without a window alone. A line under the tables says
which trained length was taken: max_position_embeddings of config.json, or the original one where YaRN or dynamic NTK was put on
afterwards, which the method then replaces. The factors of longrope are those of --option factors=[...], one for each pair of
channels; or they are searched by coordinate descent on the first four windows of --search TEXT, many passes over each; or they
are those of YaRN. Of a folder, of stdlib and of the text of a run, --search reads the training split.

A run on text reads bytes. A run on any other task, such as mqar or flip_flop, is measured on that task at the given lengths,
with the metrics that it was tested with.
"""
EXPLORE = """
examples:
  attnjax explore
  attnjax explore runs/stdlib_lm/0123456789abcdef
  attnjax explore heads_lm/rope/0 heads_lm/sinusoidal/0 --text "for i in range(10):"
  attnjax explore runs/theta/model.encoding.options.theta=150,seed=1

RUN is the folder of a run, the beginning of its hash, or a description: the name of its sweep in ./runs (or the folder of the
sweep), then /ENCODING/SEED, or / and fields of its config with their values, as in encoding=rope,seed=1. The hashes, encodings
and seeds of a sweep are shown by `attnjax list runs DIR`.

The command writes one file that makes no network request. Without a run the page shows four words, two heads and an encoding
to change by hand. With one run or two it also shows every head's weights on a few texts and its scores, and the loss by
position past the training length. For tasks other than text, --text takes names of tokens, separated by white space.
"""
