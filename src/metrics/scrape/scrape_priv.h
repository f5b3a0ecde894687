/* SPDX-License-Identifier: Apache-2.0 */
/* scrape, inside: a target, and the list of them. */
#pragma once
#include "base/core/list.h"
#include "base/weburl/weburl.h"
#include "io/wire/grpc/grpc.h"
#include "io/wire/http/client.h"
#include "io/wire/webask/webask.h"
#include "metrics/scrape/scrape.h"

#define SCRAPE_TAG        0x5c4a9e01U
#define SCRAPE_TARGET_TAG 0x5c4a9e02U
#define SCRAPE_NAME_BYTES 300

enum scrape_kind { SCRAPE_GIVEN, SCRAPE_ROUTER, SCRAPE_AGENT, SCRAPE_STORE, SCRAPE_KINDS };
extern const char *const scrape_kinds[];

/* Names a target. A change of it makes another target. */
struct scrape_where {
	enum scrape_kind kind;
	const char *name, *url; /* SCRAPE_GIVEN: a URL; else host:port of a gRPC port */
	const char *ca_file, *fingerprint, *token_file; /* SCRAPE_GIVEN; NULL: none */
};

struct scrape_limits {
	cgn_nsec interval, timeout;
	uint64_t max_bytes, memory;
	size_t max_samples;
};

enum scrape_failure {
	SCRAPE_UNREACHABLE,
	SCRAPE_LATE,
	SCRAPE_LARGE,
	SCRAPE_STATUS,
	SCRAPE_NO_ROOM,
	SCRAPE_FAILURES
};

struct scrape_target {
	uint32_t tag;
	struct scrape *all;
	struct cgn_link link;      /* In scrape.targets, by name */
	struct scrape_where where; /* Strings are below */
	char *text;                /* Memory of the strings */
	/* Either HTTP or gRPC is open. */
	struct http_client *http;
	struct weburl url;
	char path[256], authorization[1100];
	struct grpc_channel *grpc;

	struct cgn_timer timer;
	struct webask *ask; /* The HTTP request under way */
	bool asking;        /* A request is under way. */
	bool closing;       /* Answers are of no use any more. */
	cgn_nsec since;     /* Begin of the last round */
	/* The last rounds brought this. */
	struct scrape_page *page; /* NULL: there was none, or it is too old */
	cgn_nsec read_at, took;   /* read_at: end of the last whole round; 0: never */
	bool up;
	char why[300]; /* Not up: why; "": it was not asked yet */
	size_t bytes;  /* The length of the last whole text */
	struct exposition_stats stats;
	cgn_nsec seen_at; /* Discovered ones: when a router last named it */
	struct cgn_grave grave;
};

/* Asks one router for its nodes. */
struct scrape_finder;

struct scrape {
	uint32_t tag;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct scrape_limits limits;
	struct cgn_link targets; /* By name */
	size_t n, asking;        /* asking: requests under way */
	uint64_t held;           /* Bytes of the pages of all targets */
	struct tls_ctx *tls;     /* For gRPC; NULL: in clear */
	const char *node_name;   /* security.node_name, borrowed; NULL: addresses are verified */
	struct cgn_timer tick;   /* Drops pages that are too old, and writes gauges */
	bool discover;
	cgn_nsec discovered_at; /* When a router last told its nodes; 0: never */
	struct scrape_finder *finder;
	size_t n_finders;
	scrape_on_text *on_text; /* NULL: no one listens */
	void *listener;
	bool full_said; /* The log has that there are too many targets. */
};

/* target.c */
CGN_RC scrape_target_check(const struct scrape_where *w, struct cgn_err *err);
CGN_RC scrape_target_add(struct scrape *s, const struct scrape_where *w, struct scrape_target **out,
	struct cgn_err *err);
void scrape_target_drop(struct scrape_target *t);
struct scrape_target *scrape_target_find(struct scrape *s, const char *name);
bool scrape_target_is(const struct scrape_target *t, const struct scrape_where *w);
void scrape_page_drop(struct scrape_page **take);
/* Drop the text of the target if it is too old. */
void scrape_target_age(struct scrape_target *t, cgn_nsec now);

/* discover.c */
CGN_RC scrape_discover_open(struct scrape *s, const struct config *cfg, struct cgn_err *err);
void scrape_discover_close(struct scrape *s);
