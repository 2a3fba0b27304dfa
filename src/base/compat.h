/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between PostgreSQL majors, all of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_COMPAT_H
#define MIP_COMPAT_H

#include "access/heapam_xlog.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
#if PG_VERSION_NUM < 170000
#include "storage/buf_internals.h"
#include "storage/sinvaladt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "pg_mip needs PostgreSQL 15 or later"
#endif

#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* The identity of a relation's file; WAL block references carry it. */
#if PG_VERSION_NUM >= 160000
typedef RelFileLocator MipFileLocator;
#define MIP_RD_LOCATOR rd_locator
#define MIP_RD_FIRST_FILE_SUBID rd_firstRelfilelocatorSubid
#else
typedef RelFileNode MipFileLocator;
#define MIP_RD_LOCATOR rd_node
#define MIP_RD_FIRST_FILE_SUBID rd_firstRelfilenodeSubid
#endif

/* A relation's file, of those that it has had. */
#if PG_VERSION_NUM >= 160000
#define mip_filenumber(locator) ((locator)->relNumber)
#define mip_set_new_file relation_set_new_filelocator
#else
#define mip_filenumber(locator) ((locator)->relNode)
#define mip_set_new_file relation_set_new_filenode
#endif

/* Arguments of the access method callback scan_bitmap_next_tuple. */
#if PG_VERSION_NUM >= 180000
#define MIP_BITMAP_NEXT_TUPLE_ARGS
#define MIP_BITMAP_NEXT_TUPLE_PASS
#define MIP_BITMAP_NEXT_TUPLE_TAIL , bool *recheck, uint64 *lossy_pages, uint64 *exact_pages
#define MIP_BITMAP_NEXT_TUPLE_PASS_TAIL , recheck, lossy_pages, exact_pages
#else
#define MIP_BITMAP_NEXT_TUPLE_ARGS struct TBMIterateResult *tbmres,
#define MIP_BITMAP_NEXT_TUPLE_PASS tbmres,
#define MIP_BITMAP_NEXT_TUPLE_TAIL
#define MIP_BITMAP_NEXT_TUPLE_PASS_TAIL
#endif

#if PG_VERSION_NUM >= 180000
#define mip_conditional_xact_wait(xid) ConditionalXactLockTableWait(xid, false)
#define mip_conditional_lock_tuple(rel, tid, mode) ConditionalLockTuple(rel, tid, mode, false)
#else
#define mip_conditional_xact_wait(xid) ConditionalXactLockTableWait(xid)
#define mip_conditional_lock_tuple(rel, tid, mode) ConditionalLockTuple(rel, tid, mode)
#endif

#if PG_VERSION_NUM >= 160000
#define mip_schema_aclcheck(schema, role, mode) object_aclcheck(NamespaceRelationId, schema, role, mode)
#define mip_function_aclcheck(function, role, mode) object_aclcheck(ProcedureRelationId, function, role, mode)
#define mip_may_become(role, other) member_can_set_role(role, other)
#else
#define mip_schema_aclcheck(schema, role, mode) pg_namespace_aclcheck(schema, role, mode)
#define mip_function_aclcheck(function, role, mode) pg_proc_aclcheck(function, role, mode)
#define mip_may_become(role, other) is_member_of_role(role, other)
#endif

#if PG_VERSION_NUM >= 170000
#define mip_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define mip_index_insert_cleanup(index, info) ((void) 0)
#endif

/* The last leaf of a B-tree, locked for reading; invalid if it has no page yet */
#if PG_VERSION_NUM >= 170000
#define mip_bt_last_leaf(index) _bt_get_endpoint(index, 0, true)
#else
#define mip_bt_last_leaf(index) _bt_get_endpoint(index, 0, true, NULL)
#endif

#if PG_VERSION_NUM >= 170000
#define mip_lock_held_by_me(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define mip_lock_held_by_me(tag, mode) LockHeldByMe(tag, mode)
#endif

/* Takes a lock of the session, without waiting; `local`: what this process knows of it */
#if PG_VERSION_NUM >= 180000
#define mip_lock_acquire_local(tag, mode, local) \
	LockAcquireExtended(tag, mode, true, true, true, local, false)
#else
#define mip_lock_acquire_local(tag, mode, local) \
	LockAcquireExtended(tag, mode, true, true, true, local)
#endif

/* For assertions: has this backend locked a page's content exclusively? */
#if PG_VERSION_NUM >= 170000
#define mip_buffer_is_exclusive(buffer) BufferIsExclusiveLocked(buffer)
#else
#define mip_buffer_is_exclusive(buffer) \
	(BufferIsLocal(buffer) || \
	 LWLockHeldByMeInMode(BufferDescriptorGetContentLock(GetBufferDescriptor((buffer) - 1)), \
						  LW_EXCLUSIVE))
#endif

/* Do two entries of the lock table belong to the same transaction? */
#if PG_VERSION_NUM >= 170000
#define mip_same_vxid(a, b) \
	((a)->vxid.procNumber == (b)->vxid.procNumber && \
	 (a)->vxid.localTransactionId == (b)->vxid.localTransactionId)
#else
#define mip_same_vxid(a, b) ((a)->backend == (b)->backend && (a)->lxid == (b)->lxid)
#endif

/* ALTER TABLE ... ALTER COLUMN ... SET EXPRESSION */
#if PG_VERSION_NUM >= 170000
#define mip_sets_expression(subtype) ((subtype) == AT_SetExpression)
#else
#define mip_sets_expression(subtype) false
#endif

/* ALTER TABLE ... ENABLE ALWAYS TRIGGER, and its like; the relation is locked */
#if PG_VERSION_NUM >= 160000
#define mip_set_trigger(rel, name, fires) \
	EnableDisableTrigger(rel, name, InvalidOid, fires, false, false, ShareRowExclusiveLock)
#else
#define mip_set_trigger(rel, name, fires) \
	EnableDisableTrigger(rel, name, fires, false, ShareRowExclusiveLock)
#endif

/* A process's number, by which GetPGProcByNumber finds it */
#if PG_VERSION_NUM >= 170000
#define mip_proc_number(proc) GetNumberFromPGProc(proc)
#else
#define mip_proc_number(proc) ((proc)->pgprocno)
#endif

/* transaction_timeout: has it passed? It is not to, any more. */
#if PG_VERSION_NUM >= 170000
#define mip_transaction_timed_out() (TransactionTimeoutPending != 0)
#define mip_end_transaction_timeout() \
	(disable_timeout(TRANSACTION_TIMEOUT, false), TransactionTimeoutPending = false)
#else
#define mip_transaction_timed_out() false
#define mip_end_transaction_timeout() ((void) 0)
#endif

/* The transaction that has an entry of the lock table */
#if PG_VERSION_NUM >= 170000
#define mip_entry_vxid(entry) ((entry)->vxid)
#else
#define mip_entry_vxid(entry) \
	((VirtualTransactionId) {.backendId = (entry)->backend, .localTransactionId = (entry)->lxid})
#endif

#if PG_VERSION_NUM < 160000
#define list_member_xid(list, xid) list_member_oid(list, xid)
#define lappend_xid(list, xid) lappend_oid(list, xid)
#endif

/* Lists in shared memory: the item after `item`, or after NULL, by its member `link` */
#if PG_VERSION_NUM >= 160000
#define MIP_LIST_INIT(list) dlist_init(list)
#define MIP_LIST_PUSH(list, node) dlist_push_tail(list, node)
#define MIP_LIST_DELETE(node) dlist_delete(node)
#define MIP_LIST_NEXT(type, link, list, item) \
	(dlist_has_next(list, (item) ? &(item)->link : &(list)->head) ? \
	 dlist_container(type, link, \
					 dlist_next_node(list, (item) ? &(item)->link : &(list)->head)) : NULL)
#else
#define MIP_LIST_INIT(list) SHMQueueInit(list)
#define MIP_LIST_PUSH(list, node) SHMQueueInsertBefore(list, node)
#define MIP_LIST_DELETE(node) SHMQueueDelete(node)
#define MIP_LIST_NEXT(type, link, list, item) \
	((type *) SHMQueueNext(list, (item) ? &(item)->link : (list), offsetof(type, link)))
#endif

/* Of the pool of conflicts between serializable transactions, and of these, with n elements */
#if PG_VERSION_NUM >= 180000
#define MIP_CONFLICT_POOL_SIZE(n) \
	add_size(RWConflictPoolHeaderDataSize, mul_size(n, RWConflictDataSize))
#define MIP_SXACT_LIST_SIZE(n) \
	add_size(PredXactListDataSize, mul_size(n, sizeof(SERIALIZABLEXACT)))
#else
#define MIP_CONFLICT_POOL_SIZE(n) RWConflictPoolHeaderDataSize
#define MIP_SXACT_LIST_SIZE(n) PredXactListDataSize
#endif

/* A process's locks in one partition of the lock table: the one after `lock`, or after NULL. */
#if PG_VERSION_NUM >= 160000
#define MIP_LOCKS_EMPTY(list) dlist_is_empty(list)
#define MIP_NEXT_LOCK(list, lock) \
	(dlist_has_next(list, (lock) ? &(lock)->procLink : &(list)->head) ? \
	 dlist_container(PROCLOCK, procLink, \
					 dlist_next_node(list, (lock) ? &(lock)->procLink : &(list)->head)) : NULL)
#else
#define MIP_LOCKS_EMPTY(list) ((list)->next == (list))
#define MIP_NEXT_LOCK(list, lock) \
	((PROCLOCK *) SHMQueueNext(list, (lock) ? &(lock)->procLink : (list), \
							   offsetof(PROCLOCK, procLink)))
#endif

/* A process's own slots for weaker locks on tables */
#if PG_VERSION_NUM >= 180000
#define MIP_LOCK_SLOTS FastPathLockSlotsPerBackend()
#else
#define MIP_LOCK_SLOTS FP_LOCK_SLOTS_PER_BACKEND
#endif

/* What tuple_update tells the executor about indexes. */
#if PG_VERSION_NUM >= 160000
#define MipUpdateIndexes TU_UpdateIndexes
#define MIP_UPDATE_ALL_INDEXES TU_All
#else
#define MipUpdateIndexes bool
#define MIP_UPDATE_ALL_INDEXES true
#endif

/* An update that is not HOT. */
#if PG_VERSION_NUM >= 160000
#define mip_pgstat_count_heap_update(rel, newpage) pgstat_count_heap_update(rel, false, newpage)
#else
#define mip_pgstat_count_heap_update(rel, newpage) pgstat_count_heap_update(rel, false)
#endif

/* Is this column computed when it is read? */
#if PG_VERSION_NUM >= 180000
#define MIP_IS_VIRTUAL(att) ((att)->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
#else
#define MIP_IS_VIRTUAL(att) false
#endif

/* Has none of the rows a null in column i? NOT VALID, NOT NULL says nothing of older ones. */
#if PG_VERSION_NUM >= 180000
#define MIP_IS_NOT_NULL(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_VALID)
#else
#define MIP_IS_NOT_NULL(desc, i) (TupleDescAttr(desc, i)->attnotnull)
#endif

/* What is found in JSON is made one of a type, be it a domain. */
#if PG_VERSION_NUM >= 170000
#define MIP_IS_JSON_EXPR(node) IsA(node, JsonExpr)
#else
#define MIP_IS_JSON_EXPR(node) false
#endif

/* JSON is made of values, by casts that are looked for then. */
#if PG_VERSION_NUM >= 160000
#define MIP_IS_JSON_CONSTRUCTOR(node) IsA(node, JsonConstructorExpr)
#define MIP_JSON_CONSTRUCTOR_ARGS(node) (((JsonConstructorExpr *) (node))->args)
#else
#define MIP_IS_JSON_CONSTRUCTOR(node) false
#define MIP_JSON_CONSTRUCTOR_ARGS(node) NIL
#endif

/* Is a constraint CHECK looked at? */
#if PG_VERSION_NUM >= 180000
#define MIP_CHECK_IS_ENFORCED(check) ((check)->ccenforced)
#else
#define MIP_CHECK_IS_ENFORCED(check) true
#endif

#if PG_VERSION_NUM >= 180000
#define MIP_FK_IS_ENFORCED(fk) ((fk)->conenforced)
#else
#define MIP_FK_IS_ENFORCED(fk) true
#endif

/* Text arrays: 16 has builtin variants, the long form works everywhere. */
#define mip_deconstruct_text_array(array, elems, nulls, n) \
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, elems, nulls, n)
#define mip_construct_text_array(elems, n) \
	construct_array(elems, n, TEXTOID, -1, false, TYPALIGN_INT)

/*
 * ExecutorRun. A query that has been executed before does not run in
 * parallel; early minor releases look at the argument execute_once for that.
 */
#if PG_VERSION_NUM >= 180000
#define MIP_EXECUTOR_RUN_ARGS QueryDesc *desc, ScanDirection direction, uint64 count
#define MIP_EXECUTOR_RUN_PASS desc, direction, count
#else
#define MIP_EXECUTOR_RUN_ARGS QueryDesc *desc, ScanDirection direction, uint64 count, bool execute_once
#define MIP_EXECUTOR_RUN_PASS desc, direction, count, execute_once && !desc->already_executed
#endif

/*
 * The first minor release whose bitmap heap scans look at every page. Before, those
 * that need no columns skipped all-visible ones, also in plans that we cannot reach,
 * as EvalPlanQual's own of a subquery.
 */
#if PG_VERSION_NUM >= 180000
#define MIP_OLDEST_SERVER 180000
#elif PG_VERSION_NUM >= 170000
#define MIP_OLDEST_SERVER 170005
#elif PG_VERSION_NUM >= 160000
#define MIP_OLDEST_SERVER 160009
#else
#define MIP_OLDEST_SERVER 150013
#endif

#if PG_VERSION_NUM >= 160000
#define mip_object_ownercheck_class(relid, roleid) \
	object_ownercheck(RelationRelationId, relid, roleid)
#else
#define mip_object_ownercheck_class(relid, roleid) pg_class_ownercheck(relid, roleid)
#endif

/* A page for an insertion. */
#if PG_VERSION_NUM >= 160000
#define MIP_BUFFER_FOR_TUPLE(rel, len, vmbuffer) \
	RelationGetBufferForTuple(rel, len, InvalidBuffer, 0, NULL, vmbuffer, NULL, 0)
#else
#define MIP_BUFFER_FOR_TUPLE(rel, len, vmbuffer) \
	RelationGetBufferForTuple(rel, len, InvalidBuffer, 0, NULL, vmbuffer, NULL)
#endif

/*
 * Does heap register the visibility map's page in its WAL records? It came
 * with minor releases. As what block in those of an insertion and an update?
 */
#ifdef HEAP_UPDATE_BLKREF_VM_NEW
#define MIP_MAP_IS_REGISTERED
#define MIP_HEAP_INSERT_MAP_BLOCK HEAP_INSERT_BLKREF_VM
#define MIP_HEAP_UPDATE_MAP_BLOCK HEAP_UPDATE_BLKREF_VM_NEW
#else
#define MIP_HEAP_INSERT_MAP_BLOCK 1
#define MIP_HEAP_UPDATE_MAP_BLOCK 2
#endif

/* Does the subscriber apply transactions while they are in progress? */
#if PG_VERSION_NUM >= 160000
#define MIP_STREAMS_IN_PARALLEL(ctx) \
	(strcmp(NameStr((ctx)->slot->data.plugin), "pgoutput") == 0 && \
	 (ctx)->output_plugin_private != NULL && \
	 ((PGOutputData *) (ctx)->output_plugin_private)->streaming == LOGICALREP_STREAM_PARALLEL)
#else
#define MIP_STREAMS_IN_PARALLEL(ctx) false
#endif

/* ---- what applies a writeset ---- */

#if PG_VERSION_NUM >= 180000
#define mip_index_beginscan(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, NULL, nkeys, 0)
#else
#define mip_index_beginscan(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, nkeys, 0)
#endif

/* Enters a row into indexes without failing; the result are those where it may be a second one. */
#if PG_VERSION_NUM >= 160000
#define mip_insert_index_tuples(info, slot, estate, update, conflict, only_summarizing) \
	ExecInsertIndexTuples(info, slot, estate, update, true, conflict, NIL, only_summarizing)
#define MIP_UPDATES_INDEXES(indexes) ((indexes) != TU_None)
#define MIP_UPDATES_SUMMARIES_ONLY(indexes) ((indexes) == TU_Summarizing)
#else
#define mip_insert_index_tuples(info, slot, estate, update, conflict, only_summarizing) \
	ExecInsertIndexTuples(info, slot, estate, update, true, conflict, NIL)
#define MIP_UPDATES_INDEXES(indexes) (indexes)
#define MIP_UPDATES_SUMMARIES_ONLY(indexes) false
#endif

/* What an index keeps from one row to the next it lets go, if it has to. */
#if PG_VERSION_NUM >= 170000
#define MIP_HAS_INSERT_CLEANUP(index) ((index)->rd_indam->aminsertcleanup != NULL)
#define mip_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define MIP_HAS_INSERT_CLEANUP(index) false
#define mip_index_insert_cleanup(index, info) ((void) 0)
#endif

/* Which columns are updated is in the range table's entry, or beside it. */
#if PG_VERSION_NUM >= 160000
#define mip_add_permissions(estate, rte) addRTEPermissionInfo(&(estate)->es_rteperminfos, rte)
#define mip_set_updated_columns(estate, rti, columns) \
	(getRTEPermissionInfo((estate)->es_rteperminfos, exec_rt_fetch(rti, estate))->updatedCols = (columns))
#else
#define mip_add_permissions(estate, rte) ((void) 0)
#define mip_set_updated_columns(estate, rti, columns) \
	(exec_rt_fetch(rti, estate)->updatedCols = (columns))
#endif

#if PG_VERSION_NUM >= 180000
#define mip_before_update_triggers(estate, epq, info, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, info, tid, NULL, slot, NULL, NULL, false)
#define mip_before_delete_triggers(estate, epq, info, tid) \
	ExecBRDeleteTriggers(estate, epq, info, tid, NULL, NULL, NULL, NULL, false)
#elif PG_VERSION_NUM >= 160000
#define mip_before_update_triggers(estate, epq, info, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, info, tid, NULL, slot, NULL, NULL)
#define mip_before_delete_triggers(estate, epq, info, tid) \
	ExecBRDeleteTriggers(estate, epq, info, tid, NULL, NULL, NULL, NULL)
#else
#define mip_before_update_triggers(estate, epq, info, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, info, tid, NULL, slot, NULL)
#define mip_before_delete_triggers(estate, epq, info, tid) \
	ExecBRDeleteTriggers(estate, epq, info, tid, NULL, NULL)
#endif

#if PG_VERSION_NUM >= 160000
#define mip_init_epq(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL)
#define mip_truncate_tables(rels, relids, logged) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, false, false)
#else
#define mip_init_epq(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1)
#define mip_truncate_tables(rels, relids, logged) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, false)
#endif

#endif							/* MIP_COMPAT_H */
