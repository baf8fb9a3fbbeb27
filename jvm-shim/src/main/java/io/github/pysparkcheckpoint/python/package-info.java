/**
 * What data source and plugin share to run Python. Internal, though its classes are public: the
 * other packages of this jar use them.
 *
 * <p>{@link io.github.pysparkcheckpoint.python.PythonEnvironment} finds the Python and what it
 * lacks, by {@code describe_python.py}, a resource of this package; {@link
 * io.github.pysparkcheckpoint.python.PythonModules} names what this jar calls in the Python
 * package; {@link io.github.pysparkcheckpoint.python.Pickles} writes the pickles that Python gets
 * from here.
 */
package io.github.pysparkcheckpoint.python;
