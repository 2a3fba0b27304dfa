/*-------------------------------------------------------------------------
 *
 * prepared.h
 *	  The writeset of a prepared instance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_PREPARED_H
#define MIP_WRITESET_PREPARED_H

/*
 * Changes numbered above `after`, as many as have room in max_bytes, if that is not 0.
 * 42704 if the instance is not prepared, not any more, or not to be seen by the
 * current user; 55000 if it has not been captured; and as of mip_check_after().
 */
extern struct varlena *mip_extract_prepared(const char *xid, int64 xinst, int64 after,
											int64 max_bytes);

#endif							/* MIP_WRITESET_PREPARED_H */
