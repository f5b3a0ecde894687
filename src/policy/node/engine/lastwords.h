/* SPDX-License-Identifier: Apache-2.0 */
/* lastwords: reads the lines of an engine and its exit: the level of a line, and why the engine ended, in one
 * sentence with what to do. The texts are in lastwords.def, each with the version that it was read at.
 * Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

/* ---- levels ---- */
enum engine_line_level { ENGINE_LINE_PLAIN, ENGINE_LINE_WARNING, ENGINE_LINE_ERROR };
/* Return the level that the line has in the formats of vLLM, uvicorn, Python's logging, llama.cpp, TensorRT-LLM and glog.
 * SGLang's lines have none, and are plain, except a traceback's first. */
enum engine_line_level engine_line_level(struct cgn_str line);

/* ---- causes ---- */
#define ENGINE_WORDS_BYTES 240
/* A text counts while it is among so many last lines: an engine that survived it ended of something else. */
#define ENGINE_WORDS_LINES 400
struct engine_words {
	uint64_t lines; /* Lines so far */
	size_t cause;   /* Row of the best text; the number of rows: none */
	uint64_t at;    /* Number of the line with that text */
	char said[ENGINE_WORDS_BYTES], last[ENGINE_WORDS_BYTES]; /* The line with the text; the last line */
};
struct engine_end {
	const char *how;  /* "exit status 1": how it ended, for people */
	int code, signal; /* As of struct proc_exit */
	bool oom_kill;    /* The kernel killed a process for want of memory while the engine ran */
};
/* Copy foreign text for a node's description: valid UTF-8 without control characters, cut to |cap|, which is not 0. */
void engine_text_keep(char *to, size_t cap, struct cgn_str text);
void engine_words_begin(struct engine_words *w); /* The engine starts. */
void engine_words_line(struct engine_words *w, struct cgn_str line);
/* Write why the engine ended and what to do. */
void engine_words_tell(const struct engine_words *w, const struct engine_end *end, char *out, size_t cap);
