/* SPDX-License-Identifier: Apache-2.0 */
/* output: the output of a managed engine: its log file, its lines in the agent's log, and its last words. */
#pragma once
#include "io/os/linefile/linefile.h"
#include "io/os/proc/proc.h"
#include "policy/config/config.h"
#include "policy/node/engine/lastwords.h"

/* The last lines of an engine whose output is not logged, for the log if it fails. */
#define ENGINE_LAST_LINES 12
#define ENGINE_LAST_BYTES 240

struct engine;
struct engine_output {
	char line[ENGINE_LAST_LINES][ENGINE_LAST_BYTES];
	unsigned n;            /* Lines that came so far */
	struct linefile *file; /* NULL: no log of its own, or no line came yet */
	uint64_t file_size;    /* Where the file is rotated; 0: no file */
	unsigned files;
	struct engine_words words;
	uint64_t oom_kills; /* Counter of the system at |oom_at| */
	cgn_nsec oom_at;
};
void engine_output_init(struct engine *e, const struct config *cfg);
void engine_output_close(struct engine *e);
/* The process starts, or was adopted. */
void engine_output_begin(struct engine *e, const char *what);
void engine_output_line(struct engine *e, bool is_stderr, struct cgn_str line, unsigned long dropped);
/* The engine is well: what it said and what the kernel killed so far did not end it. Cheap. */
void engine_output_well(struct engine *e);
/* The process has ended. Write why into |out|. */
void engine_output_end(struct engine *e, const struct proc_exit *why, char *out, size_t cap);
/* Log the last lines: they say why the engine failed. */
void engine_output_tell(struct engine *e);
