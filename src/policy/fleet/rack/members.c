/* SPDX-License-Identifier: Apache-2.0 */
/* members: the hosts that have the role etcd, compared with the members of an etcd that runs. */
#include <string.h>

#include "policy/fleet/rack/rack.h"

/* A member that has not started yet has no name. */
static bool member_is_of(const struct rack_member *m, const struct rack_host *h)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	rack_peer_url(h, &url);
	return strcmp(cgn_buf_z(&url), m->peer_url) == 0 &&
		(m->name[0] == '\0' || strcmp(h->name, m->name) == 0);
}

static const struct rack_host *host_of(const struct rack *r, const struct rack_member *m)
{
	const struct rack_host *h;
	for (size_t i = 0; (h = rack_nth(r, RACK_ETCD, i)) != NULL; i++)
		if (member_is_of(m, h))
			return h;
	return NULL;
}

static bool member_stays(const struct rack *r, const enum rack_etcd_data *data, const struct rack_member *m)
{
	const struct rack_host *h = host_of(r, m);
	return h != NULL && data[h - r->hosts] != RACK_DATA_NONE;
}

/* A host that was not asked is left alone. */
static bool host_joins(const struct rack *r, const enum rack_etcd_data *data, const struct rack_members *m,
	const struct rack_host *h)
{
	for (size_t i = 0; i < m->n; i++)
		if (member_is_of(&m->list[i], h) && member_stays(r, data, &m->list[i]))
			return false;
	return data[h - r->hosts] != RACK_DATA_UNKNOWN;
}

CGN_RC rack_moves_find(const struct rack *r, const enum rack_etcd_data *data, const struct rack_members *m,
	struct rack_moves *out, struct cgn_err *err)
{
	const struct rack_host *h;
	*out = (struct rack_moves){.n_leave = 0};
	for (size_t i = 0; i < m->n; i++)
		if (!member_stays(r, data, &m->list[i]))
			out->leave[out->n_leave++] = &m->list[i];
		else if (m->list[i].learner)
			out->promote[out->n_promote++] = &m->list[i];
	if (out->n_leave == m->n)
		return CGN_FAIL(err, CONFLICT,
			"%.150s: none of the %zu members of the etcd that answers is one of its hosts: names or addresses differ, or the hosts have no data",
			r->file, m->n);
	for (size_t i = 0; (h = rack_nth(r, RACK_ETCD, i)) != NULL; i++)
		if (host_joins(r, data, m, h))
			out->join[out->n_join++] = h;
	return CGN_OK;
}

void rack_join_cluster(const struct rack_members *m, const struct rack_host *h, struct cgn_buf *out)
{
	for (size_t i = 0; i < m->n; i++)
		cgn_buf_fmt(out, "%s%s=%s", i > 0 ? "," : "",
			m->list[i].name[0] != '\0' ? m->list[i].name : h->name, m->list[i].peer_url);
}
