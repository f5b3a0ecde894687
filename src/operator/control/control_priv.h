/* SPDX-License-Identifier: Apache-2.0 */
/* control, inside: the known objects, the queue of resources to reconcile, and the work under way. */
#pragma once
#include "base/core/list.h"
#include "base/crypto/crypto.h"
#include "io/net/pki/pki.h"
#include "io/os/loop/backoff.h"
#include "operator/control/control.h"
#include "operator/metrics.h"
#include "policy/fleet/desired/certs.h"

#define CONTROL_TAG     0x0be7a701U
#define CONTROL_BUCKETS 4096
#define CONTROL_WORKS   8                       /* Resources that are reconciled at a time. */
#define CONTROL_ITEMS   200000                  /* Most objects that are known. */
#define CONTROL_KEY     (64 + DESIRED_NAME_MAX) /* "namespace/name" */

/* Certificate, key and authorities of a Secret that this program wrote. */
struct item_tls {
	struct pki_pair pair;
	struct cgn_buf bundle, crl;
	bool authority;
};

/* An object of Kubernetes. */
struct item {
	struct cgn_link link;  /* In its bucket. */
	struct cgn_link queue; /* In the queue. */
	enum desired_kind kind;
	bool queued, working, marked;
	bool leaving;                /* The object is being deleted. */
	int64_t version, generation; /* As read last. */
	/* A resource: */
	char *text; /* JSON; NULL: not a resource. */
	size_t bytes;
	int64_t looked;    /* Generation for which objects that are no longer wanted were looked for last. */
	cgn_nsec retry_at; /* 0: at once. */
	unsigned failures;
	const char *phase;          /* Phase in the status that was written; NULL: none. */
	char since[K8S_TIME_BYTES]; /* When it became ready, or not. */
	bool ready_told;
	char certs_since[K8S_TIME_BYTES]; /* The same of its certificates. */
	bool certs_told;
	cgn_nsec due;         /* When certificates are judged again; 0: never. */
	struct sha256 status; /* Hash of the status that was written. */
	enum desired_kind owner_kind;
	/* An owned object: */
	bool applied;  /* |body| is the hash of the object that was applied last. */
	bool applying; /* An apply is under way; events wait for its answer. */
	bool dirty;    /* Another program changed the object. */
	int64_t event_version,
		event_generation; /* Versions of an event that came while an apply was under way; 0: none. */
	struct sha256 body;
	uint64_t replicas, ready, wanted; /* Counts in the object's status; |wanted|: of a DaemonSet. */
	struct item_tls *tls;             /* NULL: no Secret with certificates. */
	char holder[DESIRED_UID];         /* Uid of the owner that manages it; empty: none is known. */
	char owner[CONTROL_KEY];          /* Key of its resource, as its label says. */
	char key[];
};

/* The certificates of the cluster that is reconciled. */
struct work_certs {
	struct certs_plan *plan;
	struct pki_pair ca;
	struct cgn_buf bundle, crl; /* Authorities, and lists of revoked certificates. */
	int64_t ca_from, ca_to;
	int64_t ends,
		look_at; /* End of the first certificate, and when to judge again, in Unix seconds; 0: none. */
	struct cgn_buf note;       /* Secrets and reasons, for an event. */
	const char *reason, *made; /* Reasons of the condition and of that event; NULL: none. */
	bool ready;
	char message[320], ends_text[40];
};

/* The reconciliation of one resource: its objects are applied in order. */
struct work {
	struct control *c;
	struct item *resource; /* NULL: the work is free. */
	struct desired_set set;
	struct k8s_call *call;
	struct item *object; /* The one that is being applied. */
	size_t at;
	bool writes, failed; /* Something was written; the resource is tried again. */
	bool soon;           /* The resource changed meanwhile: it is read again, and nothing failed. */
	bool going;          /* The resource is being deleted. */
	bool others;         /* An object of another owner is in the way. */
	char waits[400];     /* The reason why the resource is there yet. */
	void (*told)(void *user);
	struct sha256 status;
	struct cgn_buf body; /* The status that is written after its event. */
	struct work_certs certs;
	struct cgn_err err; /* Why it failed, or why nothing can be made of the resource. */
	char space[64], name[DESIRED_NAME_MAX], uid[DESIRED_UID];
};

struct control {
	uint32_t tag;
	struct cgn_loop *loop;
	struct k8s *k8s;
	struct telemetry *telemetry;
	struct k8s_watch *watches[DESIRED_KINDS];
	struct control_watch {
		struct control *c;
		enum desired_kind kind;
		bool heard, connected;
	} sources[DESIRED_KINDS];
	struct cgn_link buckets[CONTROL_BUCKETS];
	size_t n_items, n_queued, n_working;
	struct cgn_link queue;
	struct work works[CONTROL_WORKS];
	struct cgn_hook turn;
	struct cgn_timer retry, due;
	char *space, *prefix, *tag_text;
	struct desired_images images;
	struct metric_cell *reconciles, *applies, *failures, *drifts;
};

/* ---- items.c ---- */
struct item *item_find(struct control *c, enum desired_kind kind, const char *key);
/* Find or add; NULL: too many. */
struct item *item_add(struct control *c, enum desired_kind kind, const char *key);
void item_drop(struct control *c, struct item *i);
void item_each(struct control *c, void (*fn)(void *arg, struct item *i), void *arg);
/* Write "namespace/name" of an object; false: it has none. */
bool item_key(struct json_val object, char out[CONTROL_KEY]);
/* Return metadata.generation, which the API server raises when the spec changes. Autoscalers have none: a number that stands for
 * their spec. */
int64_t item_generation(enum desired_kind kind, struct json_val object);

/* ---- work.c ---- */
void control_queue(struct control *c, struct item *i);
void control_wake(struct control *c);
bool control_heard(const struct control *c); /* Every list was read. */
void work_drop(struct work *w);              /* Free its members. */
void work_over(struct work *w);              /* The resource is done, or is tried again. */

/* ---- links.c ---- */
void path_put(enum desired_kind kind, const char *space, const char *name, struct cgn_buf *b);
/* Is it an object of the resource, by its label and by the owner that manages it? Only such objects are deleted. */
bool item_is_held(const struct item *i, const struct work *w);
/* Find spec.cascade of a ModelPool; false: it has none, or |i| is not a ModelPool. */
bool pool_cascade(const struct item *i, struct json_val *out);
/* Find the InferenceCluster of a ModelPool or RoutingPolicy. */
CGN_RC work_cluster(struct control *c, const struct item *resource, struct json_val object, struct item **out,
	struct cgn_err *err);

/* ---- watch.c ---- */
CGN_RC control_watch(struct control *c, struct cgn_err *err);

/* ---- reconcile.c ---- */
/* Make the objects and apply them, behind what the set has already. */
void work_objects(struct work *w);

/* ---- certs.c ---- */
/* Put the certificates of a cluster into the set, make those that are due, and go on with work_objects; or lead to status_write. */
void certs_begin(struct work *w);
/* Note for an event with the reason |made| that |secret| was made, and why. */
void certs_note(struct work *w, const char *made, const char *secret, const char *why);

/* ---- revoked.c ---- */
/* Make the lists of revoked certificates in w->certs.crl, of those in |old|. While certificates are on their way to pods, until
 * |held| (Unix seconds), no more are revoked. */
CGN_RC revoked_make(struct work *w, struct cgn_str old, int64_t held, struct cgn_err *err);

/* ---- secret.c ---- */
/* Keep the texts of a Secret of certificates; true: they changed. */
bool item_tls_take(struct item *i, struct json_val object);
void item_tls_drop(struct item *i);
/* Read data of a Secret; members that are missing are empty. The texts are NUL-terminated. */
void secret_read(struct json_val object, struct item_tls *out);
void item_tls_fini(struct item_tls *t);

/* ---- deletion.c ---- */
bool resource_is_deleting(struct json_val object);
bool finalizer_is_set(struct json_val object);
/* Add our finalizer, or take it away; false: it could not be started, and |w| has failed. */
bool finalizer_write(struct work *w, struct json_val object, bool set, k8s_done_fn *done);
/* Read the answer: true: it is as wanted, or the resource is gone. */
bool finalizer_written(struct work *w, const struct k8s_answer *a);
/* Delete the resource's objects that have pods, and wait for them; leads to work_over. */
void pods_end(struct work *w);
/* Do the next step of a resource's deletion; leads to work_over. */
void deletion_begin(struct work *w);

/* ---- status.c ---- */
/* Write an event of the resource, and then call |done|, also if that failed. */
void event_tell(struct work *w, const char *reason, const char *message, void (*done)(void *work));
/* Write the resource's status if it differs from the last one; leads to work_over. */
void status_write(struct work *w);
