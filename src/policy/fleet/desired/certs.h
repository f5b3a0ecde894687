/* SPDX-License-Identifier: Apache-2.0 */
/* certs: the certificates of an InferenceCluster: which there are, in which Secrets, and when each is made again. The keys are made
 * elsewhere; time is an argument, in Unix seconds. Pure. */
#pragma once
#include "policy/fleet/desired/desired.h"

#define CERTS_LEAVES   5
#define CERTS_NAMES    40 /* Names of one certificate, URIs included. */
#define CERTS_NAME_MAX 300
#define CERTS_DNS_MOST 16  /* Most names in spec.security.dnsNames. */
#define CERTS_REVOKED  256 /* Most serial numbers in spec.security.revoked. */
#define CERTS_SERIAL   41  /* Bytes of one in hex, and the NUL. */
#define CERTS_SKEW     300 /* For clocks of other machines that are behind. */
#define CERTS_OVERLAP \
	300 /* Until every pod has the files of a Secret that changed: the kubelet looks each minute or two. */
#define CERTS_AUTHORITY "authority"
#define CERTS_LEAF      "certificates"

/* A certificate of programs, in a Secret of its own: tls.crt, tls.key, and ca.crt, the authorities to trust. */
struct certs_leaf {
	const char *component; /* "router" */
	char secret[DESIRED_NAME_MAX];
	const char *names[CERTS_NAMES + 1]; /* NULL-terminated; into |text|. */
	size_t n_names;
};
struct certs_plan {
	bool secured; /* False: spec.security.mode is insecure, and nothing below counts. */
	bool own;     /* cgn-operator issues the authority; else |authority| is another's Secret. */
	char authority[DESIRED_NAME_MAX];
	char authority_name[80];
	int64_t life, authority_life; /* Seconds. */
	struct certs_leaf leaf[CERTS_LEAVES];
	size_t n;
	char text[CERTS_LEAVES * CERTS_NAMES][CERTS_NAME_MAX];
	size_t n_text;
	bool revokes; /* spec.security.revoked is there: programs have a list of revoked certificates. */
	char revoked[CERTS_REVOKED][CERTS_SERIAL]; /* Serial numbers, as certs_serial writes them. */
	size_t n_revoked;
};
/* Read the certificates that |cluster| wants. CGN_INVALID: a name cannot stand in a certificate. */
CGN_RC certs_plan_read(struct json_val cluster, struct certs_plan *out, struct cgn_err *err);

/* Write a serial number in hex, with or without colons, as lower-case digits without leading zero bytes. False: it is none. */
bool certs_serial(struct cgn_str hex, char out[CERTS_SERIAL]);
bool certs_is_revoked(const struct certs_plan *p, const char *serial);

/* Facts of a certificate. */
struct certs_facts {
	bool there;   /* The Secret has texts. */
	bool broken;  /* The texts are not a certificate and its key. */
	bool revoked; /* The plan names the certificate. */
	bool named;   /* The certificate has the names of the plan, and no others. */
	bool ours;    /* The authority that signs today has signed it. */
	bool trusted; /* An authority of the bundle has signed it. */
	int64_t from, to;
};
enum certs_verdict {
	CERTS_KEEP,
	CERTS_ISSUE,
	CERTS_BROKEN /* An authority cannot be used, and is not replaced. */
};
struct certs_judgement {
	enum certs_verdict verdict;
	const char *why; /* "it is missing"; NULL: kept. */
	int64_t look_at; /* When it is judged again. */
};
/* A leaf. |signs_from|: since when the authority that signs now is known to all pods. A leaf of an earlier authority is replaced only
 * then, unless it must be. */
struct certs_judgement certs_judge_leaf(const struct certs_facts *f, int64_t signs_from, int64_t now);
/* An authority of our own. */
struct certs_judgement certs_judge_authority(const struct certs_facts *f, int64_t now);
/* Validity of a certificate that is made now: |life| seconds, at most until |most| (0: no bound) and not
 * before |least|. */
struct certs_period {
	int64_t from, to;
} certs_period_of(int64_t life, int64_t least, int64_t most, int64_t now);
/* Since when an authority of ours with this period is known to all pods. */
int64_t certs_known_at(int64_t from, int64_t to);

/* Append the Secret |name| to |out|. |component|: CERTS_AUTHORITY or CERTS_LEAF. */
struct certs_texts {
	struct cgn_str cert, key, bundle;
	struct cgn_str crl; /* Lists of revoked certificates; empty: none. */
};
CGN_RC certs_secret_put(struct json_val cluster, const char *name, const char *component,
	const struct certs_texts *texts, struct desired_set *out, struct cgn_err *err);
