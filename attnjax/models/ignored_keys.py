"""Keys of config.json that change no number of a model, grouped by what uses them instead."""

FILES = (
    *("architectures", "auto_map", "model_type", "name_or_path", "_name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "tokenizer_class", "is_encoder_decoder"),
    *("task_specific_params", "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task"),
    *("prefix", "is_llama_config", "transformers.js_config"),
)
RUNNING = (
    *("attn_implementation", "_attn_implementation", "use_cache", "return_dict", "output_attentions"),
    *("output_hidden_states", "output_past", "chunk_size_feed_forward", "pretraining_tp", "gradient_checkpointing"),
    *("initializer_range", "initializer_factor", "classifier_dropout", "language", "directionality"),
)
SPECIAL_TOKENS = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id"),
    *("mask_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
)
GENERATION = (
    *(
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
    ),
    *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "output_scores", "suppress_tokens"),
    *("return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty", "begin_suppress_tokens"),
)
IGNORED_KEYS = frozenset((*FILES, *RUNNING, *SPECIAL_TOKENS, *GENERATION))
