/* SPDX-License-Identifier: Apache-2.0 */
/* places: how many files there may be, and what each tenant has of them. */
#include <stdlib.h>
#include <string.h>

#include "policy/who/auth/auth.h"
#include "router/shared/filestore/filestore_priv.h"

/* A place for a file that is going to be written. */
struct place {
	struct cgn_link link; /* In store->places. */
	char id[FILESTORE_ID_MAX], tenant[FILESTORE_TENANT_MAX + 1];
};

/* ---- with the lock held ---- */

static size_t places_used(const struct filestore *s)
{
	return s->n + s->n_uploads + s->n_places;
}

static struct quota_ask share_ask(const struct filestore *s, struct cgn_str tenant, size_t want)
{
	const size_t all = places_used(s);
	struct quota_ask ask = {.kind = QUOTA_FILES,
		.alone = cgn_str_is(tenant, AUTH_NO_TENANT),
		.want = want};
	for (size_t i = 0; i < s->n; i++)
		ask.held += cgn_str_is(tenant, s->files[i].tenant);
	cgn_list_each (it, &s->uploads)
		ask.held += cgn_str_is(tenant, CGN_CONTAINER(it, struct filestore_upload, link)->tenant);
	cgn_list_each (it, &s->places)
		ask.held += cgn_str_is(tenant, CGN_CONTAINER(it, struct place, link)->tenant);
	ask.free = all < s->cfg.max_files ? s->cfg.max_files - all : 0;
	return ask;
}

CGN_RC filestore_share_check(const struct filestore *s, struct cgn_str tenant, size_t want,
	struct quota_told *told, struct cgn_err *err)
{
	const struct quota_ask ask = share_ask(s, tenant, want);
	if (quota_judge(&ask, told))
		return CGN_OK;
	if (told->held == 0)
		return CGN_FAIL(err, OVERLOADED,
			"all %zu places for files are taken (batch.max_files): try it again later",
			places_used(s));
	return CGN_FAIL(err, OVERLOADED,
		"there are %zu files, uploads and results to come, %llu of them of this tenant, which may have %llu (batch.max_files): delete some",
		places_used(s), (unsigned long long)told->held,
		(unsigned long long)(ask.alone ? s->cfg.max_files : told->limit));
}

static struct place *place_find(const struct filestore *s, const char *id)
{
	cgn_list_each (it, &s->places) {
		struct place *p = CGN_CONTAINER(it, struct place, link);
		if (strcmp(p->id, id) == 0)
			return p;
	}
	return NULL;
}

void filestore_place_drop(struct filestore *s, const char *id)
{
	struct place *p = place_find(s, id);
	if (p == NULL)
		return;
	cgn_list_drop(&p->link);
	s->n_places--;
	free(p);
}

static void place_add(struct filestore *s, struct cgn_str tenant, const char *id)
{
	if (place_find(s, id) != NULL || filestore_row_find(s, cgn_str_of(id)) != NULL)
		return;
	struct place *p = CGN_NEW(struct place);
	(void)cgn_str_copyz(p->id, sizeof p->id, cgn_str_of(id));
	(void)cgn_str_copyz(p->tenant, sizeof p->tenant, tenant);
	cgn_list_push(&s->places, &p->link);
	s->n_places++;
}

void filestore_places_free(struct filestore *s)
{
	cgn_list_each_safe (it, &s->places)
		free(CGN_CONTAINER(it, struct place, link));
}

/* ---- clients ---- */

struct quota_told filestore_share(struct filestore *s, struct cgn_str tenant)
{
	struct quota_told told;
	CGN_LIVE(s, FILESTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	const struct quota_ask ask = share_ask(s, tenant, 1);
	(void)pthread_mutex_unlock(&s->lock);
	(void)quota_judge(&ask, &told);
	return told;
}

CGN_RC filestore_reserve(struct filestore *s, struct cgn_str tenant, const char *const ids[], size_t n,
	struct quota_told *told, struct cgn_err *err)
{
	CGN_LIVE(s, FILESTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	cgn_rc rc = filestore_share_check(s, tenant, n, told, err);
	for (size_t i = 0; i < n && cgn_ok(rc); i++)
		place_add(s, tenant, ids[i]);
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

void filestore_reserve_again(struct filestore *s, struct cgn_str tenant, const char *id)
{
	CGN_LIVE(s, FILESTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	place_add(s, tenant, id);
	(void)pthread_mutex_unlock(&s->lock);
}

void filestore_give(struct filestore *s, const char *id)
{
	CGN_LIVE(s, FILESTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	filestore_place_drop(s, id);
	(void)pthread_mutex_unlock(&s->lock);
}
