/* SPDX-License-Identifier: Apache-2.0 */
/* options: llama-server's command line beside its model, part by part, for the fingerprint; read at llama.cpp
 * 0.7.0 (`llama-server --help`). Every option counts as it stands. The options that change a state
 * (--cache-type-k and -v, --flash-attn, --rope-*, --yarn-*, --override-kv, --swa-full, --split-mode, ...) are
 * too many, and change too often, to tell them from the rest; a needless one costs a state that could have
 * been shared, not a wrong answer. Options that name files which change the weights (LoRA adapters, control
 * vectors) count by the content of those files. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/str.h"

struct slot_options { /* Zero all but the first two members */
	const char *const *args;
	size_t n;
	size_t at;
	struct cgn_str files; /* Rest of a list of files */
	bool scaled;          /* Each file is followed by ":SCALE" */
	struct cgn_str scale; /* Scale of the previous file */
};
struct slot_option {
	struct cgn_str text; /* Borrowed from the arguments */
	bool is_file;        /* |text| is a path, whose content counts */
};
/* Get the next part. False: there are no more parts. */
bool slot_options_next(struct slot_options *o, struct slot_option *out);
/* True when |assignment| ("NAME=value") sets an option of llama-server, which reads LLAMA_ARG_*. */
bool slot_options_in_env(const char *assignment);
