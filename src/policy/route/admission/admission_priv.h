/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of admission. admission.c: tickets and queues. serve.c: room on nodes. forecast.c:
 * decisions about one request. */
#pragma once
#include "policy/route/admission/admission.h"

/* The waiting requests of one model and role. */
struct admission_queue {
	struct cgn_link link; /* In admission.queues. */
	char *model;
	size_t bucket;
	enum admission_role role;
	struct admission *of; /* The queue's gate asks it. */
	struct queue *order;
	struct cgn_link retries; /* Tickets of requests that a node failed; they go first. */
	size_t n_retries;
	struct queue_rate rate;
	cgn_nsec not_before, idle_since;
	/* After a request came back, others follow slowly: at most |window| in each ADMISSION_BOUNCE_WAIT, of which |left| are
	 * left until |window_end|. 0: no limit. */
	uint32_t window, left;
	cgn_nsec window_end;
};

#define ADMISSION_BOUNCE_WAIT (20 * CGN_MSEC) /* After a reserved place was gone. */

struct admission {
	uint32_t tag;
	struct admission_rules rules;
	const struct admission_ops *ops;
	void *user;
	const struct node_stats *stats;
	const struct cluster_view *view;
	cgn_nsec now;  /* Time of the current call. */
	uint64_t free; /* Places of the candidates that room_find saw last. */
	cgn_nsec started;
	cgn_nsec drain_at; /* 0: no drain. */
	struct cgn_link queues;
	size_t waiting;
	cgn_nsec ready_at[ADMISSION_BUCKETS]; /* When the model had a ready node last. */
	struct {
		cgn_nsec ready_at, until;
	} expected[ADMISSION_BUCKETS]; /* By admission_expect. */
	uint32_t reserved[ROUTE_MAX_NODES];
	struct route_cand cands[ROUTE_MAX_NODES]; /* Scratch. */
};

size_t admission_queue_len(const struct admission_queue *q);
cgn_nsec admission_queue_wait(const struct admission *a, const struct admission_queue *q, size_t ahead);
/* Report that |by| requests more wait in |q|. */
void admission_queue_changed(struct admission *a, struct admission_queue *q, int by);
void admission_retry_drop(struct admission_queue *q, struct admission_ticket *t);
const struct view_model *admission_queue_model(const struct admission *a, const struct admission_queue *q);
void admission_answer(struct admission *a, struct admission_ticket *t, enum admission_verdict verdict,
	unsigned retry_after);
/* Return the Retry-After of a request that would be met after |wait|; 0: not even an idle node meets it. */
unsigned admission_met_after(const struct admission_ticket *t, cgn_nsec wait);
/* Admit whatever there is room for. */
void admission_serve_all(struct admission *a);
