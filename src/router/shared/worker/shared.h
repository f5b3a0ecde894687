/* SPDX-License-Identifier: Apache-2.0 */
/* shared: the objects that all workers and the control loop of a router share. Every member is constant while
 * workers run, atomic, or an object that is safe for several threads. */
#pragma once
#include <stdatomic.h>

#include "base/digest/digest.h"
#include "io/os/proc/proc.h"
#include "policy/node/breaker/outlier.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/routing/prompttail.h"
#include "policy/who/rate/rate.h"

struct batches;
struct filestore;
struct gw_admission;
struct gw_age;
struct gw_arms;
struct gw_budgets;
struct gw_calibrations;
struct gw_misfits;
struct gw_peers;
struct gw_pregate;
struct gw_quotas;
struct gw_quotes;
struct gw_reservations;
struct gw_sessions;
struct gw_usage;
struct linefile;
struct telemetry;
struct tracing;
struct tls_ctx;

/* Does router.energy.series say what a joule costs now? */
enum gw_price_state { PRICE_NOT_ASKED /* The series was not read yet. */, PRICE_KNOWN, PRICE_NOT_KNOWN };

struct gw_shared {
	struct telemetry *telemetry;  /* the program's; borrowed */
	struct tracing *tracing;      /* the same; NULL: off */
	struct audit *audit;          /* the same; NULL: off */
	struct chooser_shared choice; /* the control loop writes its index */
	_Atomic uint32_t turns;       /* choice.turns */
	struct prompttail_table *tails;
	struct outlier_tally *tallies;        /* CLUSTER_STATS, by slot */
	struct gw_misfits *misfits;           /* nodes that refuse what others answer; NULL: none is kept */
	struct rate_table *limits;            /* rate limits of all workers */
	struct gw_quotas *quotas;             /* holdings of each tenant in supplies that all share */
	struct gw_age *age;                   /* the clock of deletions */
	struct gw_usage *usage;               /* the requests of 32 days */
	struct gw_calibrations *calibrations; /* known of cascades; NULL: calibration_share is 0 */
	struct gw_pregate *pregate;           /* how often small models' answers do not pass */
	struct gw_quotes *quotes;             /* the book of quotes; NULL: none are made */
	struct gw_arms *arms;                 /* outcomes of policies that sessions follow */
	struct gw_reservations *reservations; /* NULL: router.selection.enabled is not set */
	struct gw_sessions *sessions;         /* the sessions of agents; NULL: none are kept */
	struct gw_budgets *budgets;           /* the book of budgets */
	struct gw_peers *peers;               /* where requests may leave for; NULL: they stay */
	struct digest limit_seed;             /* random key under which bucket names are hashed */
	_Atomic uint32_t stores_away;         /* workers that have lost their Redis */
	struct tls_ctx *agent_tls;            /* NULL: agents are reached without TLS */
	const char *agent_name;               /* security.node_name; NULL: the address is verified */
	char host_id[PROC_HOST_ID];           /* where this router runs (proc_host_id); empty: not known */
	uint32_t workers;                     /* at least 1 */
	uint64_t started_unix;                /* seconds */
	uint64_t instance;                    /* random, not 0: names this run of this router to agents */
	struct linefile *_Atomic access; /* file of the access log; NULL until one is set, then for ever */
	struct gw_admission *admission;  /* NULL: no request waits for room */
	_Atomic uint64_t body_bytes;     /* memory of request bodies */
	_Atomic uint64_t resume_bytes;   /* memory kept to resume answers */
	_Atomic bool draining;
	_Atomic int price_state; /* enum gw_price_state */
	struct filestore *files; /* NULL: batch.enabled is not set */
	struct batches *batches; /* the same */
	uint64_t batch_max_file;
	uint32_t batch_max_calls;
	char batch_pass[80]; /* secret; lines of batches show it, and then the id of their key; empty: none */
};
