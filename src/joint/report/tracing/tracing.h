/* SPDX-License-Identifier: Apache-2.0 */
/* tracing: spans of requests, sent to an OpenTelemetry collector by OTLP, over HTTP or gRPC. It is on when
 * OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) is set; docs/operate/tracing.md lists the variables.
 *
 * Spans are packed when they are added and wait in memory, at most OTEL_BSP_MAX_QUEUE_SIZE of them and
 * TRACING_BYTES; further ones are dropped and counted (cgn_spans_total). A timer of the loop sends them. A collector
 * that is away costs nothing but these spans. */
#pragma once
#include "io/os/loop/loop.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/answer/tracing/tracing.h"

#define TRACING_BYTES      ((size_t)4 << 20)
#define TRACING_ATTRIBUTES 24 /* Most of one span. */

struct tracing;

/* Read the environment and begin to send on |l|. |service|: the name unless OTEL_SERVICE_NAME is set. *out is
 * NULL when tracing is off. CGN_INVALID names the variable, its value and the allowed ones. */
CGN_RC tracing_open(struct cgn_loop *l, const char *service, struct telemetry *telemetry,
	struct tracing **out, struct cgn_err *err);
/* Send the waiting spans, without waiting for the answer: call when the program begins to end. */
void tracing_flush(struct tracing *t);
void tracing_close(struct tracing **take); /* On |l|'s thread; no thread adds spans any more. NULL-safe. */

/* The rules for tracing_begin; NULL when |t| is NULL. */
const struct tracing_rules *tracing_rules_of(const struct tracing *t);

enum tracing_kind { TRACING_INTERNAL = 1, TRACING_SERVER = 2, TRACING_CLIENT = 3 };
struct tracing_attribute {
	const char *key;
	enum { TRACING_TEXT, TRACING_NUMBER, TRACING_REAL, TRACING_FLAG } type;
	struct cgn_str text; /* Cut at 4,096 bytes; bytes other than UTF-8 are escaped. */
	int64_t number;      /* TRACING_FLAG: not 0. */
	double real;
};
struct tracing_span {
	const struct tracing_context *context;
	uint64_t id, parent; /* parent 0: none */
	const char *name;
	enum tracing_kind kind;
	cgn_nsec from, to; /* By the clock of loops. */
	const char *error; /* Why it failed; NULL: it did not. */
	struct tracing_attribute attributes[TRACING_ATTRIBUTES];
	size_t n;
};
/* Add an attribute; beyond TRACING_ATTRIBUTES, and an empty text, it is left out. */
void tracing_text(struct tracing_span *s, const char *key, struct cgn_str text);
void tracing_number(struct tracing_span *s, const char *key, uint64_t number);
void tracing_real(struct tracing_span *s, const char *key, double real);
void tracing_flag(struct tracing_span *s, const char *key, bool flag);
/* Pack |s| for sending. Any thread; takes a lock for a moment and never waits for the network. */
void tracing_add(struct tracing *t, const struct tracing_span *s);
