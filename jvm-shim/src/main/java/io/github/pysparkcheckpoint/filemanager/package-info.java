/**
 * The checkpoint file manager. Internal: only {@link
 * io.github.pysparkcheckpoint.filemanager.FileManagers} is used from outside.
 *
 * <p>Spark writes its own logs (offsets, commits, metadata) and state files through a {@code
 * CheckpointFileManager}. This is one for object stores, where each file is one conditional PUT,
 * and for local disks, where each is one synced file and one link. It is set by one conf, {@code
 * spark.sql.streaming.checkpointFileManagerClass}, and needs nothing else of this project.
 *
 * <p>What holds:
 *
 * <ol>
 *   <li>Nothing is visible before {@code close()}. A stream that is cancelled, or whose process
 *       dies, leaves nothing behind; on a local disk a killed process leaves a file with a hidden
 *       name.
 *   <li>A create without overwrite is one PUT with {@code If-None-Match: *}, or one link. Of any
 *       number of creators, in any number of JVMs, exactly one succeeds; the others get {@code
 *       FileAlreadyExistsException}, which Spark reports as a concurrent query.
 *   <li>A write that failed is an exception, always. A write whose answer was lost is settled by a
 *       nonce in the object's metadata: ours is success, another one's is a lost race. Equal
 *       content proves nothing, because two drivers write the same offsets.
 *   <li>A store that does not honour the condition is found by a probe, once per JVM and bucket,
 *       before the first create, and refused unless the user accepts to run without the fence.
 *   <li>Memory is bounded over all streams of the JVM: what exceeds the bound waits on disk.
 * </ol>
 *
 * <p>Where each part is: {@code FileManagers} chooses by file system; {@code
 * ConditionalFileManager} is the manager for a connector with conditional create, {@code
 * LocalFileManager} that for a local disk; {@code AtomicUpload} is the stream that they hand out, a
 * {@code Draft} holds its bytes: {@code Spool} those of an upload, {@code LocalDraft} those of a
 * file, which gets its {@code LocalPermissions}; {@code MissingLinks} recognizes disks without
 * links; {@code MadeDirectories} are those that a store without directories would not know; {@code
 * ConditionalWriter} does the PUT and settles its outcome; {@code ConditionProbe} asks the server;
 * {@code PendingDeletes} batches deletes; {@code SparkFileNames} is the pure part: which names are
 * surely files; {@code FileManagerSettings} reads the confs.
 */
package io.github.pysparkcheckpoint.filemanager;
