/* SPDX-License-Identifier: Apache-2.0 */
/* worth: whether a request leaves the cluster. Pure; any thread.
 *
 * Local first: a request leaves if nothing here can answer it, or if it would wait here, and
 *   queue + prefill > there + margin + rework * (prefill there - prefill here)
 * where |there| is the time to the other side's first byte, and the last term counts where it is positive: the prompt's time
 * that the other side computes though it is cached here delays the requests behind it, and costs caches their places. A
 * request that need not wait leaves by the same rule if the other side has so much more of its prompt that |affinity| times
 * its own prefill there is less than its prefill here; it stays with affinity 0, and where the other side is paid.
 *
 * Money and energy count as time: to |there| the toll is added, weight * (cost there - cost here), which is negative where
 * the other side costs less. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "policy/route/admission/admission.h"

/* The expected cost of a request on a side. */
struct peer_cost {
	bool priced, powered; /* |price|, |joules| are known. */
	double price;         /* Price of the prompt and the answer, in router.currency. */
	double joules;        /* Energy of the prompt's tokens that are not cached. */
};

/* The expected time to the first byte of a request that stays. */
struct peer_stay {
	bool none;        /* no node serves the model now */
	bool waits;       /* the request has to wait for a place on a node */
	bool known;       /* |queue| and |prefill| are measured */
	cgn_nsec queue;   /* time of the requests before this one, in the queue and on the best node */
	cgn_nsec prefill; /* time of the request's own prompt on that node */
	struct peer_cost cost;
};

/* Return the expected times of a request that stays: |verdict| and |f| are of the chooser's pick for it;
 * |waits|: it has to enter the queue, where it would wait for |wait|, 0: unknown. */
struct peer_stay peer_stay_of(enum route_verdict verdict, const struct admission_forecast *f, bool waits,
	cgn_nsec wait);

/* Return true if the request is to leave for a side that gives the first byte after |there|, the way there and back
 * included. A wait of unknown length is longer than any known time: where nothing was measured yet, a request that has
 * to wait leaves. */
struct peer_rules {
	cgn_nsec margin;
	double rework, affinity; /* Not negative. */
	double price;            /* Seconds that a unit of router.currency counts as. Not negative. */
	double energy;           /* Seconds that a thousand joules count as. Not negative. */
};
struct peer_there {
	cgn_nsec ttft;
	bool known;       /* |prefill| is. */
	bool paid;        /* A price was agreed with the other side. */
	cgn_nsec prefill; /* Time of the prompt there, of the tokens that are not cached. */
	struct peer_cost cost;
};
/* Return the nanoseconds that the costs |there| count as, beyond those |here|. A cost that is not known there is as here;
 * one that is not known here is 0. */
double peer_toll(const struct peer_rules *rules, const struct peer_cost *there, const struct peer_cost *here);
/* Joules that are not known here do not count. */
bool peer_worth(const struct peer_stay *stay, const struct peer_there *there, const struct peer_rules *rules);
/* Return false if no side can be worth it, so that none needs to be asked. */
bool peer_may_be_worth(const struct peer_stay *stay, const struct peer_rules *rules);

/* Return the time to first token that three of four requests keep, after another one took |sample|: it rises by 3/64 when
 * the sample was longer and falls by 1/64 when it was not, so that one slow answer changes little and a change of the
 * other side is followed within some 30 answers. |estimate| 0: there was none before. */
cgn_nsec peer_ttft_learn(cgn_nsec estimate, cgn_nsec sample);
