/* SPDX-License-Identifier: Apache-2.0 */
/* options: what llama-server was told beside its model, part by part, for its fingerprint; read at llama.cpp
 * 0.7.0 (`llama-server --help`). Every option counts as it stands: those that change what a state means or
 * how it lies (--cache-type-k and -v, --flash-attn, --rope-*, --yarn-*, --override-kv, --swa-full,
 * --split-mode, ...) are too many and too new each month to be told from those that don't, and one too many
 * costs a state that could have been shared, not a wrong answer. Options that name files which turn the
 * weights (LoRA adapters, control vectors) count by what is in those files and not by where they lie. Pure;
 * any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/str.h"

struct slot_options { /* zero all but the first two */
	const char *const *args;
	size_t n;
	size_t at;
	struct cgn_str files; /* what is left of a list of them */
	bool scaled;          /* each has ":SCALE" behind it */
	struct cgn_str scale; /* of the file before */
};
struct slot_option {
	struct cgn_str text; /* borrowed from the arguments */
	bool is_file;        /* a path, whose content counts in its place */
};
/* False: that was all of it. */
bool slot_options_next(struct slot_options *o, struct slot_option *out);
/* Does |assignment| ("NAME=value" of the environment) set an option? llama-server reads LLAMA_ARG_*. */
bool slot_options_in_env(const char *assignment);
