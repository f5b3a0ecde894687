/* SPDX-License-Identifier: Apache-2.0 */
/* scenario: a cluster by the plan, its clients, its faults, and what must hold. */
#pragma once
#include "../world/world.h"
#include "hook.h"
#include "http.h"
#include "plan.h"

#define NODES_MOST    4
#define TENANTS_MOST  2
#define RATE_BURST    4
#define TOGETHER_MOST 4 /* Requests that a client sends before it reads an answer */

/* A program that is started again when it ends. */
struct part {
	const char *name;
	struct world_host *host;
	world_main *main;
	const char *argv[40];
	struct world_proc *proc; /* NULL: it is down */
	uint64_t harmed;         /* When something was done to it last, or it was down; 0: never */
	bool ends;               /* The part was asked to end */
};
struct node {
	char name[8];
	struct world_host *host;
	struct part agent, engine, proxy; /* |proxy|: between the two, if the plan wants one */
	bool odd;                         /* The engine does something wrong */
	const char *role;                 /* prefill, decode or both */
	uint64_t held;                    /* Blocks in its engine's cache, when it was asked last */
};
/* A tenant and the outcomes of its requests. */
struct tenant {
	char name[32], header[160];      /* Authorization, with \r\n */
	uint64_t sent, answered, unsure; /* |unsure|: those of which it is not known whether they count */
	uint64_t prompt_tokens, completion_tokens; /* Sums over the requests that were answered */
	uint64_t over_budget;                      /* Refused as such */
	uint64_t most_tokens;                      /* The largest request's */
};
struct cluster {
	struct world_host *gate, *twin_host, *hook_host;
	struct part router, twin, hook;
	struct node node[NODES_MOST];
	size_t n_nodes;
	struct tenant tenant[TENANTS_MOST];
	size_t n_tenants;   /* 0: no keys */
	uint64_t last_harm; /* When the last fault was begun or mended; 0: there was none */
	uint64_t sent, answered, refused, left, broken, lost; /* Requests, by how they ended */
	bool over; /* No further fault begins, and parts stay as they are */
};
extern struct cluster cluster;

/* ---- cluster.c ---- */
void cluster_start(void);
/* Something was, or stops being, done to a part; requests of now may fail because of it. */
void part_harm(struct part *p);
void part_kill(struct part *p);
/* Ask a part's port with a document as its answer: true with status 200 and a whole body. */
bool part_ask(const struct part *p, uint16_t port, const char *path, struct http_got *got);

/* ---- proxy.c ---- */
int proxy_main(int argc, char **argv);

/* ---- load.c ---- */
void load_run(void); /* All clients, to their end */
void load_one(void); /* Send another request and judge it as the others */

/* ---- question.c ---- */
struct hook_book *request_book(struct cgn_str question);

/* ---- faults.c ---- */
void faults_run(void); /* In the background */

/* ---- checks.c ---- */
void checks_at_rest(void);
