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
 * 42704 if the instance is not prepared, not any more, or not to be seen by the
 * current user; 55000 if it has not been captured.
 */
extern struct varlena *mip_extract_prepared(const char *xid, int64 xinst);

#endif							/* MIP_WRITESET_PREPARED_H */
