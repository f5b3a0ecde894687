/* SPDX-License-Identifier: Apache-2.0 */
/* runner, inside. All of it belongs to the runner's loop. */
#pragma once
#include "base/core/list.h"
#include "router/answer/batch/runner.h"
#include "router/shared/worker/shared.h"

#define BATCH_ANSWER_MAX ((size_t)32 << 20) /* Bytes of an answer. */
#define BATCH_TRIES      8                  /* Times that a line is asked whose engine fails. */
#define BATCH_RUNS       64                 /* Batches that are carried out at once; the others wait. */
#define BATCH_JOBS         \
	(BATCH_POOL_JOBS - \
		1) /* Inputs that are opened and results that are written at once; the last job sweeps. */

/* LINE_LATER: the line failed, and is asked again when no other one waits. */
enum line_state { LINE_WAITS, LINE_ASKED, LINE_LATER, LINE_DONE };
struct run_line {
	uint64_t at; /* Place in the input. */
	uint32_t length;
	uint8_t state, tries;
};

/* A batch that is being carried out. */
struct batch_run {
	struct cgn_link link;
	struct batch_runner *owner;
	struct batch b; /* A copy, without metadata. |holder| is its own. */
	int input, journal;
	struct run_line *lines;
	size_t n, left, asked, cursor; /* |left|: not in the journal yet, nor in |fresh|. */
	size_t later;                  /* Lines in LINE_LATER. */
	uint64_t journal_bytes;
	bool journal_torn; /* The journal has bytes behind |journal_bytes|, which are cut off before the next write. */
	struct cgn_buf fresh; /* Records that are to be written to the journal. */
	uint64_t fresh_completed, fresh_failed;
	cgn_nsec hold_until; /* No line is asked before. */
	cgn_nsec disk_after; /* After a write that failed: nothing is written before, and no line is asked. */
	bool busy;           /* A job on the thread pool has all but |link| and |owner|. */
	cgn_rc rc;           /* How the job ended, with |err|. */
	struct cgn_err err;
	bool opened;  /* The input is open, and the lines of a new batch were checked. */
	bool stopped; /* The creator's key does not count any more: b.faults says why. */
};

struct batch_call {
	struct cgn_link link;
	struct batch_run *run;
	size_t line;
	cgn_nsec asked_at;
	struct http_call *call;
	char custom_id[BATCH_CUSTOM_MAX + 1], request_id[BATCH_ID_MAX + 16];
	int status;
	char by[16]; /* GW_BY_*; empty: the answer is an engine's. */
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
	double line_s; /* Moving average of the time that a line takes; 0: not known. */
	cgn_nsec swept_at;
	size_t n_jobs; /* Jobs on the thread pool. */
	bool sweeping; /* A job deletes old files. */
	bool stopping; /* The thread ends after the last of them. */
	struct cgn_post stop;
};

/* input.c */
/* Open the input, find its lines, and check them when the batch is new: b.faults has the errors. Any thread.
 * On failure it may be called again: the input cannot be read now. */
CGN_RC batch_input_open(struct batch_run *run, uint32_t max_lines, struct cgn_err *err);
/* Read line |i| into |text| and find its body. */
CGN_RC batch_input_line(struct batch_run *run, size_t i, struct cgn_buf *text, struct batch_line *out,
	struct cgn_err *err);

/* result.c */
/* Read the journal, and cut off a record that was half written. */
CGN_RC batch_journal_open(struct batch_run *run, struct cgn_err *err);
/* Write the fresh records and count them. On failure they stay fresh. */
CGN_RC batch_journal_flush(struct batch_run *run, struct cgn_err *err);
void batch_journal_add(struct batch_run *run, size_t line, const struct batch_answer *a, bool failed);
/* Note a try of the line that failed: a restart does not forget it. */
void batch_journal_tried(struct batch_run *run, size_t line);
/* Make the files of output and errors from the journal. With |code| the lines that have no answer are among the
 * errors, with that reason. */
CGN_RC batch_result_write(struct batch_run *run, const char *code, const char *message, struct cgn_err *err);

/* ask.c */
void batch_ask(struct batch_run *run, size_t i); /* Ask line |i| of |run|. */
/* End the calls of |run| (NULL: of all) without an answer. */
void batch_ask_cancel(struct batch_runner *w, const struct batch_run *run);
/* gate.c */
/* Find out what each batch waits for (b.waits). */
void batch_gates_look(struct batch_runner *w);
/* runner.c: ask as many lines as may be asked now. */
void batch_runner_fill(struct batch_runner *w);
