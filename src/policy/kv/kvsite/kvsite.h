/* SPDX-License-Identifier: Apache-2.0 */
/* kvsite: which blocks of KV cache may go to block stores of other sites (kv_sites.NAME). Pure; any thread.
 *
 * Fails closed: a block goes to a site only if its tenant is known and matches a pattern of the site, and its
 * model is known and matches one too. Both lists are empty by default. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/kv/block/block.h"

struct config;

struct kvsite {
	const char *name;           /* Borrowed. */
	const char *const *tenants; /* Patterns (cgn_str_glob), borrowed. */
	const char *const *models;  /* The same. */
	size_t n_tenants, n_models;
};
struct kvsites {
	size_t n;
	struct kvsite v[BLOCK_SITES];
};

/* Return the sites, a bit each, that may have blocks of the tenant, whatever their model, and so may be asked for them. An
 * empty |tenant| is not known: none. |sites| NULL: there are none. */
uint16_t kvsites_of_tenant(const struct kvsites *sites, struct cgn_str tenant);
bool kvsite_takes_model(const struct kvsite *s, struct cgn_str model); /* Empty: not known, false. */
/* Decide for all sites. |tenant| or |model| empty: not known. |sites| NULL: there are none. */
struct block_leave kvsites_judge(const struct kvsites *sites, struct cgn_str tenant, struct cgn_str model);

/* Why a block stays. The help of the metric cgn_kv_site_withheld_total has an entry for each. */
enum kvsite_why {
	KVSITE_MAY,
	KVSITE_NO_TENANT, /* The store does not know whose block it is. */
	KVSITE_TENANT,    /* The site's list of tenants lacks its tenant. */
	KVSITE_MODEL,     /* The site's list of models lacks its model, or the model is not known. */
	KVSITE_WHYS
};
enum kvsite_why kvsite_why(struct block_leave leave, unsigned site);
const char *kvsite_why_text(enum kvsite_why why); /* Label of the metric; static. */

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC kvsite_check_config(const struct config *c, struct cgn_err *err);
