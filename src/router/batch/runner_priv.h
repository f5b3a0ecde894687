/* SPDX-License-Identifier: Apache-2.0 */
/* runner, inside. All of it belongs to the runner's loop. */
#pragma once
#include "base/core/list.h"
#include "router/batch/runner.h"
#include "router/worker/shared.h"

#define BATCH_ANSWER_MAX ((size_t)32 << 20) /* Bytes of an answer. */
#define BATCH_TRIES      8                  /* Times that a line is asked whose engine fails. */
#define BATCH_RUNS       64                 /* Batches that are carried out at once; the others wait. */

enum line_state { LINE_WAITS, LINE_ASKED, LINE_DONE };
struct run_line {
	uint64_t at; /* Place in the input. */
	uint32_t length;
	uint8_t state, tries;
};

/* A batch that is being carried out. */
struct batch_run {
	struct cgn_link link;
	struct batch_runner *owner;
	struct batch b; /* A copy, without metadata. */
	int input, journal;
	struct run_line *lines;
	size_t n, left, asked, cursor; /* |left|: not in the journal yet, nor in |fresh|. */
	uint64_t journal_bytes;
	struct cgn_buf fresh; /* Records that are to be written to the journal. */
	uint64_t fresh_completed, fresh_failed;
	cgn_nsec hold_until; /* No line is asked before. */
	bool stopped;        /* The creator's key does not count any more: b.faults says why. */
};

struct batch_call {
	struct cgn_link link;
	struct batch_run *run;
	size_t line;
	struct http_call *call;
	char custom_id[BATCH_CUSTOM_MAX + 1], request_id[BATCH_ID_MAX + 16];
	int status;
	unsigned retry_after;
	bool never; /* x-should-retry: false */
	struct cgn_buf answer;
};

#define BATCH_RUNNER_TAG 0x62720e01U
struct batch_runner {
	uint32_t tag;
	struct batch_runner_cfg cfg;
	struct cgn_loop *loop;
	struct http_client *client;
	struct cgn_timer timer;
	struct cgn_link runs, calls;
	size_t n_runs, n_calls;
	double window; /* Lines at once; grows while nothing waits for room, and is halved when something does. */
	cgn_nsec swept_at;
	struct cgn_post stop;
};

/* input.c */
/* Find the lines of the input, and check them when the batch is new. False: b.faults says what is wrong. */
bool batch_input_open(struct batch_run *run, uint32_t max_lines);
/* Read line |i| into |text| and find its body. */
CGN_RC batch_input_line(struct batch_run *run, size_t i, struct cgn_buf *text, struct batch_line *out,
	struct cgn_err *err);

/* result.c */
/* Read what the journal has, and cut off what was half written. */
CGN_RC batch_journal_open(struct batch_run *run, struct cgn_err *err);
/* Write the fresh records and count them. On failure they stay fresh. */
CGN_RC batch_journal_flush(struct batch_run *run, struct cgn_err *err);
void batch_journal_add(struct batch_run *run, size_t line, const struct batch_answer *a, bool failed);
/* Make the files of output and errors from the journal. With |code| the lines that have no answer are among the
 * errors, with that reason. */
CGN_RC batch_result_write(struct batch_run *run, const char *code, const char *message, struct cgn_err *err);

/* ask.c */
/* Ask line |i| of |run|. */
void batch_ask(struct batch_run *run, size_t i);
/* End the calls of |run| (NULL: of all) without an answer. */
void batch_ask_cancel(struct batch_runner *w, const struct batch_run *run);
/* runner.c: ask as many lines as may be asked now. */
void batch_runner_fill(struct batch_runner *w);
