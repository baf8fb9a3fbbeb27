package io.github.pysparkcheckpoint;

import java.io.Serializable;

/**
 * What an executor tells the driver of its Python, if something is wrong with it.
 *
 * @param host where the executor runs
 * @param problem what is wrong, and how to mend it; the same text on every host that lacks the same
 */
record PythonFinding(String host, String problem) implements Serializable {

  private static final long serialVersionUID = 1L;
}
