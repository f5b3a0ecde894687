/* SPDX-License-Identifier: Apache-2.0 */
/* others: documents that other rooms fill. */
#include "router/control/control/peers.h"
#include "router/control/control/policy.h"
#include "router/control/scaler/scaler.h"
#include "router/control/service/documents.h"
#include "router/request/admission/admission.h"
#include "router/request/calibration/calibration.h"

bool router_fill_queues(const struct document_query *q, Cognitora__V1__Queues *to)
{
	to->max_queue = q->r->published.rules->queue.most;
	gw_admission_fill(q->r->shared.admission, q->t, to);
	return true;
}

bool router_fill_scale_response(const struct document_query *q, Cognitora__V1__ScaleResponse *to)
{
	router_scaler_fill(q->r->scaler, q->t, to);
	return true;
}

bool router_fill_peers_response(const struct document_query *q, Cognitora__V1__PeersResponse *to)
{
	router_peers_fill(q->r, q->t, to);
	return true;
}

bool router_fill_cascades_response(const struct document_query *q, Cognitora__V1__CascadesResponse *to)
{
	gw_calibrations_fill(q->r->shared.calibrations, q->t, to);
	return true;
}

bool router_fill_key_uses(const struct document_query *q, Cognitora__V1__KeyUses *to)
{
	router_keys_fill(q->r, q->t, to);
	return true;
}

bool router_fill_policy_status(const struct document_query *q, Cognitora__V1__PolicyStatus *to)
{
	router_policy_fill(q->r, to);
	return true;
}

bool router_fill_history(const struct document_query *q, Cognitora__V1__History *to)
{
	router_history_fill(q->r, q->t, to);
	return true;
}
