/* SPDX-License-Identifier: Apache-2.0 */
/* member: the members of etcd itself. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "io/wire/etcd/etcd_priv.h"

/* Call |done| with the members, which it borrows. */
static CGN_RC members_tell(struct etcd_op *op, Etcdserverpb__Member *const *list, size_t n,
	struct etcd_result *r, struct cgn_err *err)
{
	struct etcd_member *members = calloc(n + 1, sizeof *members);
	if (members == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu members of etcd", n);
	for (size_t i = 0; i < n; i++)
		members[i] = (struct etcd_member){.id = list[i]->id,
			.name = list[i]->name,
			.peer_url = list[i]->n_peerurls > 0 ? list[i]->peerurls[0] : "",
			.learner = list[i]->islearner};
	r->members = members;
	r->n_members = n;
	etcd_op_tell(op, r);
	free(members);
	return CGN_OK;
}

static CGN_RC list_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__MemberListResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__member_list_response__descriptor, bytes, &m, err));
	return members_tell(op, m->members, m->n_members, r, err);
}

static CGN_RC add_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__MemberAddResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__member_add_response__descriptor, bytes, &m, err));
	return members_tell(op, m->members, m->n_members, r, err);
}

static CGN_RC promote_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__MemberPromoteResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__member_promote_response__descriptor, bytes, &m, err));
	return members_tell(op, m->members, m->n_members, r, err);
}

static CGN_RC remove_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__MemberRemoveResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__member_remove_response__descriptor, bytes, &m, err));
	return members_tell(op, m->members, m->n_members, r, err);
}

static const struct etcd_kind list_kind = {"/etcdserverpb.Cluster/MemberList", list_done};
static const struct etcd_kind add_kind = {"/etcdserverpb.Cluster/MemberAdd", add_done};
static const struct etcd_kind promote_kind = {"/etcdserverpb.Cluster/MemberPromote", promote_done};
static const struct etcd_kind remove_kind = {"/etcdserverpb.Cluster/MemberRemove", remove_done};

void etcd_member_list(struct etcd *e, etcd_done_fn *done, void *user)
{
	Etcdserverpb__MemberListRequest m = ETCDSERVERPB__MEMBER_LIST_REQUEST__INIT;
	(void)etcd_op_start(e, &list_kind, &m, done, user);
}

void etcd_member_add(struct etcd *e, const char *peer_url, etcd_done_fn *done, void *user)
{
	Etcdserverpb__MemberAddRequest m = ETCDSERVERPB__MEMBER_ADD_REQUEST__INIT;
	char *urls[] = {(char *)(uintptr_t)peer_url}; /* protobuf-c has no const; packing only reads. */
	m.n_peerurls = 1;
	m.peerurls = urls;
	m.islearner = true;
	(void)etcd_op_start(e, &add_kind, &m, done, user);
}

void etcd_member_promote(struct etcd *e, uint64_t id, etcd_done_fn *done, void *user)
{
	Etcdserverpb__MemberPromoteRequest m = ETCDSERVERPB__MEMBER_PROMOTE_REQUEST__INIT;
	m.id = id;
	(void)etcd_op_start(e, &promote_kind, &m, done, user);
}

void etcd_member_remove(struct etcd *e, uint64_t id, etcd_done_fn *done, void *user)
{
	Etcdserverpb__MemberRemoveRequest m = ETCDSERVERPB__MEMBER_REMOVE_REQUEST__INIT;
	m.id = id;
	(void)etcd_op_start(e, &remove_kind, &m, done, user);
}
