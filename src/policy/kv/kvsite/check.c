/* SPDX-License-Identifier: Apache-2.0 */
/* kvsite: the settings of [kv_sites]: blocks leave this site only as it was meant to. */
#include "policy/config/config.h"
#include "policy/kv/kvsite/kvsite.h"

/* The name stands in the log and in metrics. */
static cgn_rc check_name(const struct config_kv_site *s, struct cgn_err *err)
{
	for (const char *p = s->name; *p != '\0'; p++)
		if (*p <= ' ' || *p > '~' || *p == '"')
			return CGN_FAIL(err, INVALID,
				"kv_sites.\"%.40s\": a site's name has visible ASCII characters only, no spaces and quotes",
				s->name);
	return CGN_OK;
}

/* A site without a CA of its own would be a part of this one. */
static cgn_rc check_site(const struct config *c, const struct config_kv_site *s, struct cgn_err *err)
{
	CGN_TRY(check_name(s, err));
	if (s->ca_file == NULL)
		return CGN_FAIL(err, INVALID,
			"kv_sites.\"%.40s\" needs ca_file: the CA of the site's stores, the only one that is believed there",
			s->name);
	if (c->security.ca_file != NULL && strcmp(s->ca_file, c->security.ca_file) == 0)
		return CGN_FAIL(err, INVALID,
			"kv_sites.\"%.40s\".ca_file is security.ca_file: a site has a CA of its own; name stores of this CA in kv.peers",
			s->name);
	if ((s->cert_file == NULL) != (s->key_file == NULL))
		return CGN_FAIL(err, INVALID,
			"kv_sites.\"%.40s\" has one of cert_file and key_file: set both, or none for those of [security]",
			s->name);
	if (s->listen == NULL && s->peers.n == 0)
		return CGN_FAIL(err, INVALID,
			"kv_sites.\"%.40s\" has no peers and no listen: nothing can come from it or go there",
			s->name);
	return CGN_OK;
}

CGN_RC kvsite_check_config(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_kv_sites; i++)
		CGN_TRY(check_site(c, &c->kv_sites[i], err));
	return CGN_OK;
}
