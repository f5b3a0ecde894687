/* SPDX-License-Identifier: Apache-2.0 */
/* hook: the words that the router and an external check exchange: the JSON document of a question, and the answer as a
 * decision. docs/fleet/access/hooks.md has the format. Pure; any thread. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

struct config;

/* ---- the question ---- */

enum hook_body {
	HOOK_NO_BODY,
	HOOK_JSON, /* A JSON document; bytes that turn out to be something else are written as HOOK_BYTES. */
	HOOK_CHECKED, /* A JSON document that the caller has parsed already. */
	HOOK_EVENTS,  /* Server-sent events. */
	HOOK_LINES,   /* A JSON document in each line. */
	HOOK_BYTES    /* Anything else, written as base64. */
};

/* All strings are borrowed. An empty string is written as null. */
struct hook_question {
	const char *hook;         /* "before", "after" */
	struct cgn_str id;        /* The router's, by which both questions about a request belong together. */
	struct cgn_str client_id; /* As the client says. */
	struct cgn_str method, path, model;
	bool stream;      /* The client asks for a stream. */
	const char *kind; /* Kind of the principal. */
	struct cgn_str name, tenant;
	const char *const *roles;
	size_t n_roles;
	struct cgn_str from;
	int status;          /* Status of the answer; 0: the question is about the request. */
	struct cgn_str type; /* Content-Type of the answer. */
	bool complete;       /* The answer is whole. */
	enum hook_body form;
	struct cgn_str body;
};
/* Append the document in two steps, of which the second one reads the body and may take long: all but the body, then the
 * body and the end. Errors are the buffer's. */
void hook_question_open(struct cgn_buf *out, const struct hook_question *q);
void hook_question_close(struct cgn_buf *out, enum hook_body form, struct cgn_str body);

/* ---- the answer ---- */

#define HOOK_ANSWER_MAX  ((size_t)64 * 1024) /* Bytes of an answer that are read. */
#define HOOK_MESSAGE_MAX 512                 /* Bytes of a message that a client is shown. */
#define HOOK_CODE_MAX    64

enum hook_decision { HOOK_ALLOWED, HOOK_REFUSED, HOOK_FAILED };

struct hook_verdict {
	enum hook_decision decision;
	/* Refused: the client's status, code and message. The message is UTF-8 without control characters. */
	int status;
	char code[HOOK_CODE_MAX + 1], message[HOOK_MESSAGE_MAX + 1];
	const char *why; /* Failed: the sentence for the log. */
};
/* Read an answer of the HTTP status |status|:
 *   200, 204  allowed if the body is empty; otherwise a JSON object whose "allow" is true or false decides, and whose members
 *             "allow", "message" and "code" stand there once
 *   4xx       refused
 *   others    failed
 * A refusal has "message" and "code" of a JSON body, where they are strings. */
void hook_answer_read(int status, struct cgn_str body, struct hook_verdict *out);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC hook_check_config(const struct config *c, struct cgn_err *err);
