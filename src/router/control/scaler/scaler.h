/* SPDX-License-Identifier: Apache-2.0 */
/* scaler: decides once a second how many replicas each model needs (policy/fleet/autoscale), for each role of its nodes, and
 * carries the decisions out (router.autoscaler). Engines are stopped or put to sleep by the orders of cgn-ctl model unload
 * and sleep, marked as the router's. A node of which an operator said something is left alone. At most SCALER_GROUPS models
 * and roles, SCALER_EVENTS decisions remembered, one order at a time. On the control loop. */
#pragma once
#include "base/core/err.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"

#define SCALER_GROUPS 64
#define SCALER_EVENTS 64

struct router;
struct scaler;
struct scaler *router_scaler_open(struct router *r);
/* Keep the usual loads by the time of day in the file |path|, and read it; a damaged one is set aside. Once the router has
 * its rules. */
void router_scaler_load(struct scaler *s, const char *path);
/* Keep the autoscaler's cordons in the file |path|, and lift those that it names; an earlier run has set them. */
void router_scaler_cordons(struct scaler *s, const char *path);
void router_scaler_close(struct scaler **take);
/* The configuration was read again: an order that failed is decided again at once. NULL-safe. */
void router_scaler_reload(struct scaler *s);
/* Fill in the models with their loads and the last decisions, newest first. |s| may be NULL. |to| borrows from |s|. */
void router_scaler_fill(const struct scaler *s, struct pb_tree *t, Cognitora__V1__ScaleResponse *to);
