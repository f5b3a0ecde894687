/* SPDX-License-Identifier: Apache-2.0 */
/* batch: OpenAI's batches: their object, the lines of their input, and the journal of their answers. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/answer/batch/hours.h"

struct config;

#define BATCH_ID_MAX       40
#define BATCH_TENANT_MAX   128
#define BATCH_KEY_MAX      40
#define BATCH_ENDPOINT_MAX 64
#define BATCH_METADATA_MAX ((size_t)16384)
#define BATCH_ERRORS       8   /* Faults of an input that are told; the others are not. */
#define BATCH_CUSTOM_MAX   256 /* Bytes of a custom_id. */

enum batch_status {
#define STATUS(id, text, over) BATCH_##id,
#include "policy/answer/batch/status.def"
#undef STATUS
	BATCH_STATUSES
};
const char *batch_status_text(enum batch_status s);
bool batch_status_is_over(enum batch_status s);

enum batch_time {
#define TIME(id, key) BATCH_##id##_AT,
#include "policy/answer/batch/times.def"
#undef TIME
	BATCH_TIMES
};

struct batch_fault {
	char code[48], message[220];
	uint64_t line; /* From 1 on; 0: none. */
};
/* A batch. Times in Unix seconds; 0: not so far. */
struct batch {
	char id[BATCH_ID_MAX], tenant[BATCH_TENANT_MAX + 1];
	/* Id of the creator's API key, or account of the holder of the token (|by_token|); empty: no keys are asked for. */
	char key[BATCH_KEY_MAX];
	char endpoint[BATCH_ENDPOINT_MAX], window[16];
	char input[BATCH_ID_MAX], output[BATCH_ID_MAX], error[BATCH_ID_MAX]; /* Ids of files. */
	bool has_output, has_error;                                          /* The files were written. */
	enum batch_status status, ending; /* |ending|: what follows FINALIZING. */
	uint64_t times[BATCH_TIMES];
	uint64_t total, completed, failed; /* Lines. */
	struct batch_fault faults[BATCH_ERRORS];
	size_t n_faults;
	/* Not in the file: the reason for which no line is asked now, and the time at which that ends at the latest. */
	enum batch_wait waits;
	uint64_t waits_until_s;
	char *metadata; /* A JSON object, owned; NULL: none. */
	bool by_token; /* A token of an identity provider made it: |holder| is of policy/who/claims/kept.h. */
	char *holder;  /* A JSON object, owned; NULL: none. */
};
void batch_fini(struct batch *b);
void batch_fault_add(struct batch *b, const char *code, uint64_t line, const char *message);

/* Append the object as clients get it: OpenAI's, and "waiting": {"for":"hours","until":SECONDS} while it waits. */
struct json_out;
void batch_put(const struct batch *b, struct json_out *j);
/* The text of its file, sealed. INVALID: damaged, or of a later version. */
void batch_file_put(const struct batch *b, struct cgn_buf *out);
CGN_RC batch_file_read(struct cgn_str text, struct batch *out, struct cgn_err *err);
/* Is |json| an object of at most 16 strings, with keys of at most 64 bytes and values of at most 512? */
struct json_val;
bool batch_metadata_ok(const struct json_val *v);

/* ---- a line of the input ---- */
struct batch_line {
	char custom_id[BATCH_CUSTOM_MAX + 1];
	struct cgn_str body; /* JSON, borrowed from the text. */
};
/* Read {"custom_id","method":"POST","url":endpoint,"body":{...}}. INVALID: |code| is OpenAI's word, |err| the sentence. */
CGN_RC batch_line_read(struct cgn_str text, const char *endpoint, struct batch_line *out, const char **code,
	struct cgn_err *err);

/* ---- a line of the output ---- */
struct batch_answer {
	const char *batch_id, *custom_id;
	uint64_t line;
	int status; /* 0: there was no answer, and |code| and |message| say why. */
	struct cgn_str request_id, body;
	const char *code, *message;
};
/* Append one line of JSON, its newline included. A body other than JSON becomes a string. */
void batch_answer_put(const struct batch_answer *a, struct cgn_buf *out);

/* ---- the journal ---- */
/* A record is a line "SUM NUMBER KIND LENGTH" and LENGTH bytes: a line of the output, or nothing for a try that failed. SUM
 * covers all behind it. */
#define BATCH_RECORD_MAX ((size_t)64 << 20) /* Bytes of a record's text. */
struct batch_record {
	uint64_t line;       /* From 0 on. */
	bool failed;         /* Belongs to the error file. */
	struct cgn_str text; /* Borrowed. */
	bool tried;          /* A try of the line failed, and the line is asked again: |text| is empty. */
};
void batch_record_put(const struct batch_record *r, struct cgn_buf *out);
/* Read the next record and move |*rest| behind it. False: |*rest| is empty, or no whole record begins there, and it
 * stays where the last one ended. */
bool batch_record_next(struct cgn_str *rest, struct batch_record *out);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC batch_check_config(const struct config *c, struct cgn_err *err);
